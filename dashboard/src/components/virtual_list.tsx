// A list that renders only the rows in view: @tanstack/virtual-core, adapted to Preact.
import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";

interface Props<T> {
  rows: T[];
  keyOf: (row: T) => string;
  estimate: number;
  render: (row: T, index: number) => ComponentChildren;
  label: string;
  role?: "list" | "log" | "feed";
  class?: string;
  /** The row that the keyboard selected; it is scrolled into view. */
  selected?: number;
  /** Rows come to their end, as in a chat: the list starts at its end and stays there while the user is at it. */
  fromEnd?: boolean;
  /** Changes when the selected row is to be shown again, after the user scrolled away from it. */
  jumps?: number;
  /** Where the selected row comes to stand; without it, it is scrolled as little as needed. */
  align?: "auto" | "center";
  /** The first and the last row in view, when they change. */
  onRange?: (first: number, last: number) => void;
  onNearEnd?: () => void;
  onNearStart?: () => void;
}

const NEAR_ROWS = 12;
const AT_END_PX = 48;

export function VirtualList<T>(props: Props<T>) {
  const { rows, keyOf, estimate, fromEnd = false, selected } = props;
  const element = useRef<HTMLDivElement>(null);
  const [, rerender] = useReducer((count: number, _: null) => count + 1, 0);
  const options = {
    count: rows.length,
    getScrollElement: () => element.current,
    estimateSize: () => estimate,
    getItemKey: (index: number) => keyOf(rows[index] as T),
    overscan: 6,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    onChange: () => rerender(null),
  };
  const [virtualizer] = useState(() => new Virtualizer<HTMLDivElement, HTMLElement>(options));
  virtualizer.setOptions(options);
  useLayoutEffect(() => virtualizer._didMount(), []);
  useLayoutEffect(() => virtualizer._willUpdate());

  const before = useRef({ first: "", last: "", atEnd: selected === undefined || selected < 0, height: 0 });
  const first = rows.length ? keyOf(rows[0] as T) : "";
  const last = rows.length ? keyOf(rows[rows.length - 1] as T) : "";
  const height = virtualizer.getTotalSize();
  useLayoutEffect(() => {
    const scroller = element.current;
    const was = before.current;
    if (scroller && fromEnd && rows.length) {
      if (was.atEnd) scroller.scrollTop = scroller.scrollHeight;
      // older rows came before: keep the rows in view where they are
      else if (was.first && was.first !== first && was.last === last) scroller.scrollTop += height - was.height;
    }
    before.current = { ...was, first, last, height };
  }, [first, last, height]);
  // rows that come before the selected one change its index, which is no reason to scroll to it
  const selectedKey = selected !== undefined && rows[selected] !== undefined ? keyOf(rows[selected] as T) : null;
  useEffect(() => {
    if (selected === undefined || selected < 0) return;
    if (fromEnd) before.current.atEnd = false;
    virtualizer.scrollToIndex(selected, { align: props.align ?? "auto" });
  }, [selectedKey, props.jumps]);

  const shown = virtualizer.getVirtualItems();
  const start = shown[0]?.index ?? 0;
  const end = shown[shown.length - 1]?.index ?? 0;
  useEffect(() => {
    if (end >= rows.length - NEAR_ROWS) props.onNearEnd?.();
    if (start <= NEAR_ROWS && !before.current.atEnd) props.onNearStart?.();
  }, [start, end, rows.length]);

  const visible = virtualizer.range;
  useEffect(() => {
    if (visible) props.onRange?.(visible.startIndex, visible.endIndex);
  }, [visible?.startIndex, visible?.endIndex, rows.length]);

  const onScroll = () => {
    const scroller = element.current;
    if (scroller) before.current.atEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < AT_END_PX;
  };
  return (
    <div ref={element} class={`virtual ${props.class ?? ""}`} role={props.role ?? "list"} aria-label={props.label} tabIndex={0} onScroll={onScroll}>
      <div class="virtual-space" style={{ height: `${height}px` }}>
        {shown.map((item) => (
          <div key={item.key} data-index={item.index} ref={(node) => virtualizer.measureElement(node)} class="virtual-row"
            role={props.role === "log" ? undefined : "listitem"} style={{ transform: `translateY(${item.start}px)` }}>
            {props.render(rows[item.index] as T, item.index)}
          </div>
        ))}
      </div>
    </div>
  );
}
