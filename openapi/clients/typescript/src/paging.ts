/** Iterators over all items of a list, page by page. */

export interface Page<Item> {
  data: Item[];
  has_more: boolean;
  next_cursor: string | null;
}

/** Iterate over all items: `items((cursor) => turnkeep.api.listFacts({ query: { owner: "mia", cursor } }))`. */
export async function* items<Item>(fetch: (cursor?: string) => Promise<Page<Item>>): AsyncGenerator<Item, void> {
  let page = await fetch();
  yield* page.data;
  while (page.has_more && page.next_cursor !== null) {
    page = await fetch(page.next_cursor);
    yield* page.data;
  }
}
