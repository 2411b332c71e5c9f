// What a run says that the last successful run of its pipeline did not: both texts are read from
// their beginnings, and a line is new if its text, with what differs from run to run masked, is
// not among the masked lines of the other.

import { get, json, logsOf, runOf, type RunDetails } from "./api";

/** Of each run at most so much is read, in characters. */
export const MOST_CHARS = 200_000_000;
/** Different masked lines of the successful run that are kept. */
const MOST_KNOWN = 300_000;
const MOST_KINDS = 500;
const MOST_LINES = 1_000_000;
const MOST_COMPARED = 2000;
const PAGES = 20;

// eslint-disable-next-line no-control-regex
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g;
const UUIDS = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/gi;
const IDS = /\b(?:0x[0-9a-f]+|[0-7][0-9A-HJKMNP-TV-Z]{25}|(?=[a-f]*[0-9])[0-9a-f]{7,})\b/gi;
const DAYS = /\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? +)?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* +\d+/g;
const NUMBERS = /[-+]?\d+(?:[.,:]\d+)*/g;
const SPACES = /\s+/g;

/** A line without what differs from run to run: numbers, ids, times, colours, progress. */
export function masked(line: string): string {
  const shown = line.slice(0, MOST_COMPARED).replace(/\r+$/, "");
  return shown
    .slice(shown.lastIndexOf("\r") + 1)
    .replace(ESCAPES, "")
    .replace(UUIDS, "#")
    .replace(IDS, "#")
    .replace(DAYS, "#")
    .replace(NUMBERS, "#")
    .replace(SPACES, " ")
    .trim();
}

export interface Kind {
  /** The first such line, as it is. */
  text: string;
  first: number;
  count: number;
}

export interface Changes {
  /** The successful run with which this one was compared. */
  against: string;
  /** Lines of this run that were compared. */
  compared: number;
  /** Lines that are new, in order, and how many there are, if those are too many to keep. */
  lines: number[];
  total: number;
  kinds: Kind[];
  /** What was not read, as a sentence. */
  limits: string;
}

/** The last run before this one whose outcome is success. Raises `Problem`. */
export async function lastGood(fqn: string, run: string, signal: AbortSignal): Promise<string | null> {
  type List = { details: RunDetails[]; after: string | null };
  const own = await json<List>(logsOf(fqn), { name: run, limit: 50 }, signal);
  const began = own.details.find((one) => one.runId === run)?.first ?? Infinity;
  let after: string | undefined;
  for (let page = 0; page < PAGES; page++) {
    const found = await json<List>(logsOf(fqn), { outcome: "success", limit: 50, after }, signal);
    const good = found.details.find((one) => one.runId !== run && (one.first ?? 0) <= began && one.lines !== 0);
    if (good) return good.runId;
    if (found.after === null) return null;
    after = found.after;
  }
  return null;
}

/** Longer than this no piece of work goes on before frames and keys have their turn. */
const TURN_MS = 8;

/** Lets the browser draw and hear: a message is a task of its own, and is not delayed as timers are. */
function turn(): Promise<void> {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

/** Calls `each` for every line up to the bound; whether all were read. */
async function eachLine(fqn: string, run: string, signal: AbortSignal, each: (line: string, n: number) => boolean, progress: (chars: number) => void): Promise<boolean> {
  const reply = await get(`${runOf(fqn, run)}/download`, { format: "text" }, signal);
  const reader = reply.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let n = 0;
  let chars = 0;
  let since = performance.now();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return rest ? each(rest, n) : true;
    chars += value.length;
    const parts = (rest + value).split("\n");
    rest = parts.pop()!;
    for (const line of parts) {
      if (!each(line, n++)) {
        await reader.cancel();
        return false;
      }
      if (performance.now() - since > TURN_MS) {
        await turn();
        signal.throwIfAborted();
        since = performance.now();
      }
    }
    progress(chars);
    if (chars > MOST_CHARS) {
      await reader.cancel();
      return false;
    }
  }
}

/** Compares a run with one that succeeded. Raises `Problem`. */
export async function changes(fqn: string, run: string, good: string, signal: AbortSignal, progress: (chars: number) => void): Promise<Changes> {
  const known = new Set<string>();
  let before = 0;
  const allKnown = await eachLine(fqn, good, signal, (line) => known.add(masked(line)).size <= MOST_KNOWN, (chars) => progress((before = chars)));
  const kinds = new Map<string, Kind>();
  const lines: number[] = [];
  let total = 0;
  let compared = 0;
  const look = (line: string, n: number): boolean => {
    compared = n + 1;
    const text = masked(line);
    if (!text || known.has(text)) return true;
    total++;
    if (lines.length < MOST_LINES) lines.push(n);
    const kind = kinds.get(text);
    if (kind) kind.count++;
    else if (kinds.size < MOST_KINDS) kinds.set(text, { text: line.slice(0, MOST_COMPARED), first: n, count: 1 });
    return true;
  };
  const all = await eachLine(fqn, run, signal, look, (chars) => progress(before + chars));
  const limits = [
    allKnown ? "" : `Only the beginning of ${good} was read, so some of these may be in its rest.`,
    all ? "" : "Only the beginning of this run was compared.",
    kinds.size < MOST_KINDS ? "" : `Only the first ${MOST_KINDS} kinds are listed.`,
  ];
  return { against: good, compared, lines, total, kinds: [...kinds.values()], limits: limits.filter(Boolean).join(" ") };
}
