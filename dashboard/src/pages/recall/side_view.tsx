// One side of the comparison: its configuration, its figures, its hits.
import type { EmbeddingSpace, RecallHit } from "../../api/types";
import type { Latest } from "../../api/latest";
import { ErrorNote, Loading } from "../../components/basics";
import { RangeField, SelectField } from "../../components/fields";
import { number } from "../../lib/format";
import { strings } from "../../strings";
import { WEIGHTS, type Configuration, type Found, type Weight } from "./configuration";
import { HitView } from "./hit_view";
import { CUTS, markOf, type Figures, type Mark, type MarkedQuery } from "./marks";

const text = strings.recall;
const LARGEST_WEIGHT = 2;

interface ConfigurationProps {
  name: string;
  value: Configuration;
  /** Null: the key may not choose. */
  spaces: EmbeddingSpace[] | null;
  mayWeigh: boolean;
  onChange: (change: Partial<Configuration>) => void;
}

export function ConfigurationForm({ name, value, spaces, mayWeigh, onChange }: ConfigurationProps) {
  const weigh = (weight: Weight, given: number) => {
    const { [weight]: _, ...others } = value.weights;
    onChange({ weights: given === WEIGHTS[weight] ? others : { ...others, [weight]: given } });
  };
  const changed = Object.keys(value.weights).length;
  return (
    <fieldset class="card stack configuration">
      <legend>{name}</legend>
      <div class="pair">
        <SelectField label={text.mode} value={value.mode} options={Object.entries(text.modes) as [Configuration["mode"], string][]} onValue={(mode) => onChange({ mode })} />
        {spaces && spaces.length > 1 && (
          <SelectField label={text.space} value={String(value.space ?? "")} options={[["", text.searchedSpace], ...spaces.map(spaceOption)]}
            onValue={(space) => onChange({ space: space ? Number(space) : null })} />
        )}
        <RangeField label={text.minRelevance} min={0} max={1} step={0.01} value={value.minRelevance} shown={value.minRelevance.toFixed(2)}
          onValue={(minRelevance) => onChange({ minRelevance })} />
      </div>
      {mayWeigh && (
        <details>
          <summary>{changed ? text.weightsChanged(changed) : text.weights}</summary>
          <div class="weights">
            {(Object.keys(WEIGHTS) as Weight[]).map((weight) => (
              <RangeField key={weight} label={weight} help={undefined} min={0} max={LARGEST_WEIGHT} step={0.02} value={value.weights[weight] ?? WEIGHTS[weight]}
                shown={String(value.weights[weight] ?? WEIGHTS[weight])} onValue={(given) => weigh(weight, given)} />
            ))}
          </div>
          {changed > 0 && <button type="button" onClick={() => onChange({ weights: {} })}>{text.defaultWeights}</button>}
        </details>
      )}
    </fieldset>
  );
}

const spaceOption = ({ id, provider, model, state, configured }: EmbeddingSpace): [string, string] =>
  [String(id), `${id}: ${provider} ${model} (${state}${configured ? "" : `, ${text.notConfigured}`})`];

interface SideProps {
  name: string;
  answer: Latest<Found>;
  figures: Figures;
  marked: MarkedQuery | undefined;
  /** The places of hits on the other side. */
  others: Map<string, number> | null;
  onMark: (hit: RecallHit, mark: Mark) => void;
}

export function SideView({ name, answer, figures, marked, others, onMark }: SideProps) {
  const { value, error, loading, tookMs } = answer;
  return (
    <section class="stack side-of-recall" aria-label={name} aria-busy={loading}>
      <p class="row spread small">
        <strong>{name}</strong>
        {value && <span class="muted number">{text.found(value.data.length)} · {number(Math.round(tookMs))} ms{value.space && value.compared !== "text" && <> · {value.space}</>}</span>}
      </p>
      <FiguresLine figures={figures} />
      {error && <ErrorNote error={error} />}
      {value?.degraded.map((code) => <p key={code} class="badge warn">{strings.context.degraded[code] ?? text.degraded(code)}</p>)}
      {!value && loading && <Loading />}
      {value?.data.length === 0 && <p class="muted">{text.nothing}</p>}
      <ol class="hits">
        {value?.data.map((hit, index) => (
          <HitView key={hit.id} hit={hit} mode={value.compared} place={index + 1} otherPlace={others ? (others.get(hit.id) ?? 0) : null} mark={markOf(marked, hit.id)} onMark={onMark} />
        ))}
      </ol>
    </section>
  );
}

function FiguresLine({ figures }: { figures: Figures }) {
  if (figures.of === 0) return null;
  return (
    <p class="row small number figures">
      {CUTS.map((cut, index) => (
        <span key={cut} class="badge">R@{cut} <strong>{figures.recall[index] === null ? "–" : `${Math.round((figures.recall[index] ?? 0) * 100)} %`}</strong></span>
      ))}
      <span class="muted">{text.askedOf(figures.asked, figures.of)}</span>
    </p>
  );
}
