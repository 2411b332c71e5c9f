// Requests to the service. Addresses are relative, so the page also works below a proxy's path.
// The token is sent as a header only; it stays in this tab's session storage, never in a URL.

export interface LogRecord {
  ulid: string;
  ts: string | null;
  fqn: string;
  run_id: string;
  level: string | null;
  connector_id: string | null;
  pos: number;
  message: string;
  attributes: Record<string, string> | null;
  /** It continues the record before it: its level, and mostly its time, are that record's. */
  carried?: true;
}

export interface RunDetails {
  runId: string;
  state: string;
  /** succeeded, failed, cancelled, lost, unknown; null while it goes on. */
  outcome: string | null;
  /** What the client of the run reported last. */
  reported: string | null;
  /** When its first line or status came: the list is in this order, the latest first. */
  began: number;
  started: number | null;
  ended: number | null;
  took: number | null;
  tookFrom: "reported" | "lines" | null;
  attempt: number | null;
  lines: number | null;
  bytes: number;
  first: number | null;
  last: number | null;
}

export type Params = Record<string, string | number | boolean | undefined>;

/** What the service answered in place of a result; `message` is a sentence for people. */
export class Problem extends Error {
  constructor(readonly status: number, detail: string, readonly hint: string) {
    super([detail, hint].filter(Boolean).map(sentence).join(" "));
  }
}

/** A text that begins with a capital letter, unless it is a name, and ends with a stop. */
function sentence(text: string): string {
  text = text.replace(/^q, /, "the query, ");
  const begun = /^[a-z]+[ ,]/.test(text) ? text[0]!.toUpperCase() + text.slice(1) : text;
  return /[.!?…:]$/.test(begun) ? begun : `${begun}.`;
}

const LOGS = "api/v1/services/ingestionPipelines/logs";
const KEY = "tailrace.token";
const RESERVED = new Set(["close", "download", "last", "next", "prev", "stream"]);
let asking: Promise<void> | null = null;
let askForToken: (refused: boolean) => Promise<string> = async () => "";

export const token = (): string | null => sessionStorage.getItem(KEY);
export const forget = (): void => sessionStorage.removeItem(KEY);

/** Says how to ask a person for a token, when the service refuses to answer without one. */
export function onLogin(ask: (refused: boolean) => Promise<string>): void {
  askForToken = ask;
}

function quoted(name: string): string {
  const text = encodeURIComponent(name);
  return RESERVED.has(name) ? `%${name.charCodeAt(0).toString(16)}${name.slice(1)}` : text;
}

export const logsOf = (fqn?: string): string => (fqn === undefined ? LOGS : `${LOGS}/${quoted(fqn)}`);
export const runOf = (fqn: string, run: string): string => `${LOGS}/${quoted(fqn)}/${quoted(run)}`;
export const unfinishedOf = (fqn: string, run: string): string => `${LOGS.replace(/logs$/, "unfinished")}/${quoted(fqn)}/stream/${quoted(run)}`;
export const streamOf = (fqn: string, run: string): string => `${LOGS}/${quoted(fqn)}/stream/${quoted(run)}`;

export function address(path: string, params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

async function problem(reply: Response): Promise<Problem> {
  const text = await reply.text();
  try {
    const said = JSON.parse(text) as { detail?: string; title?: string; hint?: string };
    return new Problem(reply.status, said.detail ?? said.title ?? reply.statusText, said.hint ?? "");
  } catch {
    return new Problem(reply.status, `The service answered ${reply.status}.`, text.slice(0, 200));
  }
}

async function login(refused: boolean): Promise<void> {
  asking ??= askForToken(refused)
    .then((given) => sessionStorage.setItem(KEY, given))
    .finally(() => (asking = null));
  await asking;
}

/** Asks for a token in place of the one that is used, and begins again with it. */
export async function logInAnew(): Promise<void> {
  await login(false);
  location.reload();
}

/** A reply of the service. Raises `Problem`; asks for a token where one is needed. */
export async function get(path: string, params: Params = {}, signal?: AbortSignal): Promise<Response> {
  for (;;) {
    const used = token();
    const headers: Record<string, string> = used ? { Authorization: `Bearer ${used}` } : {};
    const reply = await fetch(address(path, params), { headers, signal: signal ?? null, cache: "no-store" });
    if (reply.status === 401) {
      if (token() === used) await login(used !== null);
      continue;
    }
    if (!reply.ok) throw await problem(reply);
    if (/^text\/html/.test(reply.headers.get("content-type") ?? "")) {
      throw new Problem(502, "A web page came instead of the service's answer. Perhaps a proxy asks for a login.", "Load this page again.");
    }
    return reply;
  }
}

export async function json<T>(path: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
  return (await get(path, params, signal)).json() as Promise<T>;
}

export interface Found<S> {
  records: LogRecord[];
  stats: S;
}

/** Records of an ndjson reply and the stats at its end. A reply without them broke off: `Problem`. */
export async function records<S>(path: string, params: Params, signal?: AbortSignal): Promise<Found<S>> {
  const text = await (await get(path, { ...params, format: "ndjson" }, signal)).text();
  const found: LogRecord[] = [];
  for (const line of text.split("\n")) {
    if (!line) continue;
    const value = JSON.parse(line) as LogRecord & { stats?: S; error?: { detail: string; hint?: string } };
    if (value.stats) return { records: found, stats: value.stats };
    if (value.error) throw new Problem(500, value.error.detail, value.error.hint ?? "");
    found.push(value);
  }
  throw new Problem(502, "The reply broke off.", "Try again.");
}

export interface ServerEvent {
  id: string | null;
  name: string;
  data: string;
}

const SILENCE_MS = 60_000;

/** Server-sent events in groups as they arrive, the first of them empty; ends with the reply. Raises `Problem`. */
export async function* events(path: string, params: Params, signal: AbortSignal): AsyncGenerator<ServerEvent[]> {
  const own = new AbortController();
  const stop = (): void => own.abort();
  signal.addEventListener("abort", stop);
  let watchdog = 0;
  try {
    const reply = await get(path, params, own.signal);
    const reader = reply.body!.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    yield [];
    for (;;) {
      clearTimeout(watchdog);
      watchdog = window.setTimeout(stop, SILENCE_MS);
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const end = rest.lastIndexOf("\n\n");
      if (end < 0) continue;
      const frames = rest.slice(0, end).split("\n\n");
      rest = rest.slice(end + 2);
      yield frames.map(parsed).filter((event) => event !== null);
    }
  } finally {
    clearTimeout(watchdog);
    signal.removeEventListener("abort", stop);
    own.abort();
  }
}

function parsed(frame: string): ServerEvent | null {
  let id: string | null = null;
  let name = "message";
  const data: string[] = [];
  for (const line of frame.split("\n")) {
    if (line.startsWith("data: ")) data.push(line.slice(6));
    else if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("event: ")) name = line.slice(7);
  }
  if (!data.length && id === null && name === "message") return null;
  return { id, name, data: data.join("\n") };
}
