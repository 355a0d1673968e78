// Addresses of pages. Names of owners and actors may have any character, so they stand in the query.
const query = (members: Record<string, string | null | undefined>): string => {
  const given = Object.entries(members).filter((member): member is [string, string] => Boolean(member[1]));
  return given.length ? `?${new URLSearchParams(given).toString()}` : "";
};

export const conversationLink = (id: string, turn?: string | null): string => `/dashboard/conversations/${id}${query({ turn })}`;
export const personLink = (owner: string, project?: string | null): string => `/dashboard/person${query({ owner, project })}`;
export const factsLink = (members: { owner?: string | null; subject?: string | null; fact?: string | null }): string => `/dashboard/facts${query(members)}`;
export const recallLink = (members: { conversation?: string; owner?: string; q?: string }): string => `/dashboard/recall${query(members)}`;
