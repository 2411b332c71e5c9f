// What is said of nodes, or of the store, that do not answer: in the service's own names.

export interface Silence {
  silent?: string[] | null;
  store?: "silent" | null;
}

/** Who does not answer, without a stop; empty if all answer. */
export function silence({ silent, store }: Silence): string {
  const nodes = silent?.length ? `${silent.length > 1 ? "nodes" : "node"} ${silent.join(", ")}` : "";
  const missing = [nodes, store ? "the object store" : ""].filter(Boolean).join(" and ");
  if (!missing) return "";
  return `${missing} ${(silent?.length ?? 0) > 1 || (nodes && store) ? "do" : "does"} not answer`;
}

/** The same as a sentence above a list that may lack something. */
export function lacking(found: Silence): string {
  const said = silence(found);
  return said && `${said[0]!.toUpperCase()}${said.slice(1)}: runs and newest lines may be missing here.`;
}
