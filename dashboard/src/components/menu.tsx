// A button that opens a list of actions. Escape, a choice, or focus elsewhere closes it.
import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";

export function Menu({ label, children }: { label: string; children: ComponentChildren }) {
  const element = useRef<HTMLDetailsElement>(null);
  const close = () => element.current?.removeAttribute("open");
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !element.current?.open) return;
    event.stopPropagation();
    close();
    element.current.querySelector("summary")?.focus();
  };
  return (
    <details ref={element} class="menu" onKeyDown={onKeyDown}
      onFocusOut={(event) => event.relatedTarget instanceof Node && !element.current?.contains(event.relatedTarget) && close()}>
      <summary class="button">{label}</summary>
      <div class="menu-items" onClick={close}>{children}</div>
    </details>
  );
}
