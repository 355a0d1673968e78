"""What a connection remembers of the turns that it writes."""

from uuid import UUID

from app.core.ids import TurnId
from app.routers.live.epochs import Epochs

ONE, TWO, THREE = (TurnId(UUID(int=n)) for n in (1, 2, 3))


def test_of_many_turns_those_that_were_begun_last_are_known() -> None:
    epochs = Epochs(most=2)
    epochs.begin(ONE, 1)
    epochs.begin(TWO, 1)
    epochs.begin(ONE, 2)
    epochs.begin(THREE, 1)
    assert [epochs.of(turn_id) for turn_id in (ONE, TWO, THREE)] == [2, None, 1]
    assert epochs.own() == {ONE: 2, THREE: 1}


def test_an_epoch_is_known_for_every_caller_until_the_turn_has_ended() -> None:
    epochs = Epochs(most=2)
    epochs.begin(ONE, 1)
    epochs.change_caller()
    assert (epochs.of(ONE), epochs.own()) == (1, {})
    epochs.record_write(ONE)
    epochs.record_write(TWO)
    assert epochs.own() == {ONE: 1}
    epochs.end(ONE)
    epochs.end(ONE)
    assert (epochs.of(ONE), epochs.own()) == (None, {})
