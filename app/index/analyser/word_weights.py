"""The weight (idf) of the words of a query, in scopes of any size. Pure.

In a scope of few entries the frequencies within it say little: the words of a single entry are in all entries and weigh
nothing. So a scope of fewer than 400 entries is filled up to 400 with short texts of everyday English. How many of
these have a word follows from its rank among common words (Zipf's law); words that are not common are in none of them.
In larger scopes the weights are those of BM25.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from app.index.analyser.analyser import Analyser

MIN_ENTRIES: Final = 400
"""Smaller scopes count as this many entries."""

# share of short texts that have the word of rank r: 2.4 / (r + 40), from 25 words per text
_SHARE: Final = 2.4
_SHARE_OFFSET: Final = 40
_NAME_SHARE: Final = 0.5


class WordWeights:
    """The weights of words. Holds the shares of common words in everyday English; make it once."""

    def __init__(self) -> None:
        self._shares = _common_shares()

    def weights(
        self, lexemes: Sequence[str], frequencies: Sequence[int], *, entries: int, names: Collection[str] = ()
    ) -> list[float]:
        """Return the idf of each lexeme, which `frequencies` of the entries in scope have.

        `names` are the lexemes of participants' names, which are in the headings of turns: each counts as in half of
        the texts added. A lexeme in no entry has the highest weight: an entry has no share of it.
        """
        added = max(0, MIN_ENTRIES - entries)
        return [
            _idf(
                frequency + added * (_NAME_SHARE if lexeme in names else self._shares.get(lexeme, 0.0)), entries + added
            )
            for lexeme, frequency in zip(lexemes, frequencies, strict=True)
        ]


def _idf(frequency: float, entries: int) -> float:
    return math.log(1 + (entries - frequency + 0.5) / (frequency + 0.5))


def _common_shares() -> Mapping[str, float]:
    """Return the share of texts that have each common lexeme: the sum over the words with the same stem."""
    analyser = Analyser()
    shares: defaultdict[str, float] = defaultdict(float)
    for rank, word in enumerate(_COMMON_WORDS.split()):
        for lexeme in analyser.lexemes(word, query=False):
            shares[lexeme] += _SHARE / (rank + _SHARE_OFFSET)
    return dict(shares)


_COMMON_WORDS: Final = """
    one first also new two time said like back made school years world may well three year later city around used state
    people part know many second university national don known way re even get head didn team american de born united
    film since still long work south us became high day family see right man eyes house season war states including took
    life north called name much place however go four group another found won area going away series left home music
    best make hand number company several never last john album take end good following released game played little
    began district old want side held early county ll league use west face think government march came small general
    town june line based something september thought looked along international air july club went january october
    august april york east show member college father public come men five set station church next former november room
    party located december age got system let love though every look song water century without body black night within
    great women single ve building large population river named band white started service top built british open death
    king moved local times children february book door need president order final road wasn although due major died
    village third knew asked turned st wanted say together received main son served different behind felt members power
    football law voice play near park history saw mother army point front help english street art late hands games award
    young put published country division across told often ever french london center six red led days include light find
    tell among species really according central half form original gave office making enough lost full opened must
    included live given german player run business woman community cup might million land court development short round
    ii km seen class story always become sure research almost director council la career things using island couldn car
    close force better free support control field students education married nothing worked others record big inside
    level anything continued give james military established non returned feel title written thing feet william far co
    association hard already championship human western department hall role various production heart living fire
    version television royal produced working act case society region present radio period looking least total keep
    england wife program per brother mind special works soon political george services taken created able reached david
    union joined upon done important social information either appeared position ground lead rock dark election board
    france hair course arms site police girl instead real sound words moment someone summer project announced san less
    wrote past followed blue founded al finally india taking records america design considered northern god stop battle
    toward european outside described track today playing language call heard professional low australia miles
    california win yet green trying blood southern science maybe everything match square mouth video race recorded leave
    daughter points space museum change middle common move tv post lake seven tried elected closed ten paul minister
    months start chief return canada person sea release similar modern brought rest hit formed mr floor event thomas
    robert care killed training star week needed turn finished railway rather news health sent example ran term michael
    coming currently yes forces despite gold areas stage fact dead says popular originally germany probably developed
    result pulled friend stood money running mi signed word songs child eventually met tour average teams minutes
    festival current deep kind decided usually eastern seemed episode bed added table indian private charles route
    available idea throughout centre addition appointed style books eight construction press mean wall friends remained
    schools study institute oh chinese sometimes events possible australian type brown forward talk process food debut
    seat performance committee features character arts else lot strong russian range hours peter arm morning dr sold
    quickly directed guitar china list performed media uk players smile placed coach province towards wouldn leading
    whole boy official designed grand census europe attack japanese henry cross getting alone action lower network wide
    washington japan hospital believe changed sister hold gone sir hadn ship studies academy shot rights base bad
    involved kept largest bank future especially beginning mark movement section female magazine plan professor lord
    longer sat walked hill actually civil energy model families size thus aircraft completed includes data captain fight
    vocals featured richard bridge fourth officer stone hear means medical groups management self lips competition
    entire lived technology leaving federal tournament bit passed hot independent awards kingdom mary spent fine doesn
    reported jack fall raised stay true studio sports replaced paris systems saint leader theatre market capital parents
    spanish canadian earth cut degree writing bay christian awarded natural higher bill coast provided previous senior
    ft valley organization stopped onto countries parts conference queen security interest saying allowed master earlier
    phone matter smith winning try happened moving campaign los breath nearly mid certain girls date italian african
    standing fell artist shows deal mine industry everyone republic provide collection library student primary owned
    older via heavy makes attention anyone africa stated length ended fingers command staff skin foreign opening
    governor okay medal kill sun cover job introduced chest hell feeling success meet reason standard meeting novel
    trade source buildings rose guy goal chapter native husband previously unit limited entered weeks producer
    operations mountain takes covered forced related roman complete successful key texas cold channel traditional films
    dance clear approximately nine van prince question active tracks ireland regional silver author personal sense
    operation economic holding twenty isbn additional speed hour edition regular historic places shook movie secretary
    prior report chicago read foundation view engine scored units ask airport property ready immediately lady month
    listed contract manager lines navy writer meant runs practice championships singer glass commission required forest
    starting culture generally giving access attended test couple stand catholic martin caught executive eye thinking
    chair quite shoulder hope decision plays defeated municipality whether structure offered slowly pain ice direction
    paper mission mostly noted individual managed nature lives plant helped except studied computer figure relationship
    issue significant loss die smiled gun ago highest male bring goals mexico problem distance commercial completely
    location annual famous drive neck surface caused italy understand greek highway wrong hotel comes appearance joseph
    double issues musical companies castle income review assembly bass initially parliament artists experience
    particular walk foot engineering talking window dropped miss baby boys break stars edge remember policy carried
    train stadium bar sex angeles evidence becoming assistant soviet upper step wing youth financial reach actor
    numerous nodded arrived minute believed sorry complex beautiful victory associated temple chance perhaps metal
    bishop lee launched particularly tree le retired subject prize contains yeah theory empire suddenly waiting trust
    recording happy terms camp champion religious pass zealand names port ancient tom corner represented watch legal
    anti justice cause watched brothers material changes simply response louis fast answer historical stories straight
    create feature increased rate administration virginia el activities cultural overall winner programs basketball legs
    guard beyond cast doctor mm flight results remains cost effect winter larger islands problems chairman grew
    commander isn pay failed selected hurt fort box regiment majority journal edward plans shown pretty irish characters
    directly scene likely operated allow spring junior matches looks mike houses fellow beach marriage rules oil florida
    expected nearby congress sam peace recent iii wait subsequently cell variety serving agreed please poor joe pacific
    attempt wood democratic piece prime rural mile touch appears township soldiers pennsylvania closer fighting claimed
    score jones physical editor filled genus specific sitting super mom therefore supported status fear cases store
    meaning wales minor spain tower focus vice frank follow parish separate golden horse fifth remaining branch
    presented stared uses secret forms baseball exactly choice note discovered travel composed truth russia ball color
    kiss dad wind continue ring referred numbers digital greater metres slightly direct increase responsible crew rule
    trees troops broke goes individuals hundred weight creek sleep memory defense provides ordered code value jewish
    windows safe judge whatever corps realized growing pre cities alexander gaze lies spread scott letter showed
    situation mayor transport watching workers extended expression normal chart multiple border host daily mrs walls
    piano heat cannot earned products drama era authority seasons join grade sign difficult machine territory mainly
    stations squadron stepped iron serve appear sky speak broken charge knowledge kilometres removed ships article
    campus simple pushed britain leaves recently cd soft boston latter easy acquired
"""
"""Common English words without stop words, the most frequent first.

The order is that of the vocabulary of the bundled model's tokenizer (Apache 2.0), which is sorted by frequency.
"""
