// Labelled form fields.
import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";

interface Common {
  label: string;
  help?: string | undefined;
}

interface InputProps extends Common {
  value: string;
  onValue: (value: string) => void;
  type?: "text" | "search" | "number" | "url" | "datetime-local";
  required?: boolean;
  placeholder?: string;
  maxLength?: number;
  min?: number;
  /** Values that are offered. */
  options?: readonly string[];
}

export function TextField({ label, help, value, onValue, options, ...rest }: InputProps) {
  const id = useId();
  const more = { ...rest, ...(options ? { list: `${id}-options` } : {}), ...(rest.type === "number" ? { step: "any" } : {}) } as JSX.IntrinsicElements["input"];
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <input {...more} id={id} value={value} autocomplete="off"
        aria-describedby={help ? `${id}-help` : undefined} onInput={(event) => onValue(event.currentTarget.value)} />
      {options && <datalist id={`${id}-options`}>{options.map((option) => <option key={option} value={option} />)}</datalist>}
      {help && <p class="help" id={`${id}-help`}>{help}</p>}
    </div>
  );
}

interface SelectProps<T extends string> extends Common {
  value: T;
  options: readonly (readonly [T, string])[];
  onValue: (value: T) => void;
}

export function SelectField<T extends string>({ label, help, value, options, onValue }: SelectProps<T>) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}</label>
      <select id={id} value={value} aria-describedby={help ? `${id}-help` : undefined} onChange={(event) => onValue(event.currentTarget.value as T)}>
        {options.map(([name, title]) => <option key={name} value={name}>{title}</option>)}
      </select>
      {help && <p class="help" id={`${id}-help`}>{help}</p>}
    </div>
  );
}

interface RangeProps extends Common {
  value: number;
  min: number;
  max: number;
  step: number;
  /** The value as text, beside the label and for screen readers. */
  shown: string;
  onValue: (value: number) => void;
}

export function RangeField({ label, help, value, min, max, step, shown, onValue }: RangeProps) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>{label}: <span class="number">{shown}</span></label>
      <input id={id} type="range" min={min} max={max} step={step} value={value} aria-valuetext={shown}
        aria-describedby={help ? `${id}-help` : undefined} onInput={(event) => onValue(Number(event.currentTarget.value))} />
      {help && <p class="help" id={`${id}-help`}>{help}</p>}
    </div>
  );
}

interface CheckProps {
  label: ComponentChildren;
  checked: boolean;
  onValue: (checked: boolean) => void;
  disabled?: boolean;
}

export function CheckField({ label, checked, onValue, disabled = false }: CheckProps) {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} disabled={disabled} onChange={(event) => onValue(event.currentTarget.checked)} /> {label}
    </label>
  );
}

/** The items of a list that the user typed with commas; null for none. */
export function itemsOf(text: string): string[] | null {
  const items = text.split(",").map((item) => item.trim()).filter(Boolean);
  return items.length ? items : null;
}
