// Tables of API lists: columns with titles, pages on demand; on narrow screens each row is a card.
import type { ComponentChildren } from "preact";
import type { Pages } from "../api/paging";
import { strings } from "../strings";
import { Empty, ErrorNote, Loading } from "./basics";

export interface Column<T> {
  title: string;
  render: (row: T) => ComponentChildren;
  isNumber?: boolean;
}

interface TableProps<T> {
  label: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  keyOf: (row: T) => string;
}

export function DataTable<T>({ label, columns, rows, keyOf }: TableProps<T>) {
  return (
    <div class="table-scroll" role="region" aria-label={label} tabIndex={0}>
      <table class="data">
        <thead>
          <tr>{columns.map(({ title, isNumber }) => <th key={title} scope="col" class={isNumber ? "number" : undefined}>{title || <span class="unseen">{strings.app.actions}</span>}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={keyOf(row)}>
              {columns.map(({ title, render, isNumber }) => <td key={title} data-title={title} class={isNumber ? "number" : undefined}><div>{render(row)}</div></td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A table of a list of the API, with its errors, its empty state and the button for the next page. */
export function PagedTable<T>({ pages, empty, ...table }: Omit<TableProps<T>, "rows"> & { pages: Pages<T>; empty: ComponentChildren }) {
  return (
    <>
      {pages.error && <ErrorNote error={pages.error} onRetry={pages.reload} />}
      {pages.rows.length > 0 ? <DataTable {...table} rows={pages.rows} /> : pages.loading ? <Loading /> : !pages.error && <Empty>{empty}</Empty>}
      {pages.hasMore && <div><button disabled={pages.loading} onClick={pages.loadMore}>{strings.app.more}</button></div>}
    </>
  );
}
