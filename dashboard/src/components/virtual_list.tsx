// A list that renders only the rows in view: @tanstack/virtual-core, adapted to Preact.
import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useCallback, useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";

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

/** More rows are read this long before the end, so that a scroll seldom waits for them. */
const NEAR_ROWS = 40;
const AT_END_PX = 48;
const ANCHOR_ROWS = 200;

/** Where the list is scrolled to, so that an item is in its middle, or just in view. */
function topFor({ start, size }: { start: number; size: number }, { scrollTop, clientHeight }: HTMLElement, align: "auto" | "center"): number {
  if (align === "center") return start - (clientHeight - size) / 2;
  if (start < scrollTop) return start;
  return Math.max(scrollTop, start + size - clientHeight);
}

/** The first row in view. */
interface Anchor<T> {
  rows: T[];
  key: string;
  index: number;
  /** How far it is scrolled out of view. */
  offset: number;
}

/** Where a row is now that was at an index before; -1 if it is not near. */
function indexNear<T>(rows: T[], keyOf: (row: T) => string, { key, index }: Anchor<T>): number {
  for (let distance = 0; distance <= ANCHOR_ROWS; distance += 1) {
    for (const place of [index + distance, index - distance]) {
      const row = rows[place];
      if (row !== undefined && keyOf(row) === key) return place;
    }
  }
  return -1;
}

export function VirtualList<T>(props: Props<T>) {
  const { rows, keyOf, estimate, fromEnd = false, selected } = props;
  const element = useRef<HTMLDivElement>(null);
  const [, rerender] = useReducer((count: number, _: null) => count + 1, 0);
  // another function lets the virtualizer compute the places of all rows again
  const getItemKey = useCallback((index: number) => keyOf(rows[index] as T), [rows]);
  const options = {
    count: rows.length,
    getScrollElement: () => element.current,
    estimateSize: () => estimate,
    getItemKey,
    overscan: 6,
    // rows that are measured show others, which would be measured within the same frame without end
    useAnimationFrameWithResizeObserver: true,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    onChange: () => rerender(null),
  };
  const [virtualizer] = useState(() => new Virtualizer<HTMLDivElement, HTMLElement>(options));
  virtualizer.setOptions(options);
  useLayoutEffect(() => virtualizer._didMount(), []);
  useLayoutEffect(() => virtualizer._willUpdate());

  const first = rows.length ? keyOf(rows[0] as T) : "";
  const last = rows.length ? keyOf(rows[rows.length - 1] as T) : "";
  const height = virtualizer.getTotalSize();
  // rows that come before the selected one change its index, so it is known by its key
  const selectedKey = selected !== undefined && rows[selected] !== undefined ? keyOf(rows[selected] as T) : null;
  const before = useRef({ first: "", last: "", height: 0, top: 0, atEnd: selectedKey === null, isHeld: false, target: "" });
  useLayoutEffect(() => {
    const scroller = element.current;
    const was = before.current;
    const target = `${selectedKey ?? ""} ${props.jumps ?? 0}`;
    // the selected row stays in view while rows are measured and read, until the user scrolls
    const isHeld = selectedKey !== null && (target !== was.target || was.isHeld);
    if (scroller && isHeld) {
      const item = virtualizer.measurementsCache[selected ?? 0];
      if (item) scroller.scrollTop = topFor(item, scroller, props.align ?? "auto");
      was.atEnd = false;
    } else if (scroller && fromEnd && rows.length) {
      if (was.atEnd) scroller.scrollTop = scroller.scrollHeight;
      // older rows came before: keep the rows in view where they are
      else if (was.first && was.first !== first && was.last === last) scroller.scrollTop += height - was.height;
    }
    before.current = { ...was, first, last, height, isHeld, target };
  }, [first, last, height, selectedKey, props.jumps, virtualizer.scrollRect?.height]);
  const release = () => void (before.current.isHeld = false);

  // rows that come or go above the rows in view leave these where they are, except at the top of a list
  const anchor = useRef<Anchor<T> | null>(null);
  useLayoutEffect(() => {
    const scroller = element.current;
    if (!scroller || fromEnd) return;
    const was = anchor.current;
    let index = virtualizer.range?.startIndex ?? 0;
    if (was && was.rows !== rows && scroller.scrollTop > 0 && !before.current.isHeld) {
      const found = indexNear(rows, keyOf, was);
      const place = virtualizer.measurementsCache[found];
      if (place) {
        scroller.scrollTop = place.start + was.offset;
        index = found;
      }
    }
    const item = virtualizer.measurementsCache[index];
    const row = rows[index];
    anchor.current = item && row !== undefined ? { rows, key: keyOf(row), index, offset: scroller.scrollTop - item.start } : null;
  });

  const shown = virtualizer.getVirtualItems();
  const start = shown[0]?.index ?? 0;
  const end = shown[shown.length - 1]?.index ?? 0;
  useEffect(() => {
    // not while the list is still on its way to the selected row
    if (before.current.isHeld && selected !== undefined && (selected < start || selected > end)) return;
    if (end >= rows.length - NEAR_ROWS) props.onNearEnd?.();
    if (start <= NEAR_ROWS && !before.current.atEnd) props.onNearStart?.();
  }, [start, end, rows.length]);

  const visible = virtualizer.range;
  useEffect(() => {
    if (visible) props.onRange?.(visible.startIndex, visible.endIndex);
  }, [visible?.startIndex, visible?.endIndex, rows.length]);

  const onScroll = () => {
    const scroller = element.current;
    if (!scroller) return;
    const was = before.current;
    // a row that is higher than estimated moves the end away: only who scrolls up leaves it
    if (scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < AT_END_PX) was.atEnd = true;
    else if (scroller.scrollTop < was.top) was.atEnd = false;
    was.top = scroller.scrollTop;
  };
  return (
    <div ref={element} class={`virtual ${props.class ?? ""}`} role={props.role ?? "list"} aria-label={props.label} tabIndex={0}
      onScroll={onScroll} onWheel={release} onTouchStart={release} onPointerDown={release} onKeyDown={release}>
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
