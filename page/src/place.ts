// The address of what is shown: `#/run/{pipeline}/{run}?line=…`. It is behind the `#`, so it is
// never sent to a server, and the page needs no route but its own.

export interface Place {
  /** `run`, `pipeline`, `search` or nothing. */
  view: string;
  names: string[];
  params: URLSearchParams;
}

export function placeOf(hash: string): Place {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [view = "", ...names] = path.split("/");
  return { view, names: names.map(decoded), params: new URLSearchParams(query) };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function link(view: string, names: string[] = [], params: Record<string, string | undefined> = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) if (value) query.set(name, value);
  const path = [view, ...names.map(encodeURIComponent)].join("/");
  const text = query.toString();
  return `#/${path}${text ? `?${text}` : ""}`;
}

export const runLink = (fqn: string, run: string, params: Record<string, string | undefined> = {}): string =>
  link("run", [fqn, run], params);

/** Changes the address without showing another place. */
export const replace = (hash: string): void => history.replaceState(null, "", hash);

/** The same, with a way back to the address before. */
export function push(hash: string): void {
  if (hash !== location.hash) history.pushState(null, "", hash);
}
