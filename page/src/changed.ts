// What a run says that the last successful run of its pipeline did not: both texts are read from
// their beginnings and handed to a worker, which compares them, so frames and keys never wait.

import { get, json, logsOf, runOf, type RunDetails } from "./api";
import { MOST_KINDS, type Compared } from "./comparison";
import type { Answer, Piece } from "./worker";

/** Of each run at most so much is read, in characters. */
const MOST_CHARS = 200_000_000;
const PAGES = 20;
/** The address of the worker's script, which the build knows. */
declare const WORKER: string;

interface Policy {
  createScriptURL(address: string): string;
}
interface Policies {
  createPolicy(name: string, rules: Policy): Policy;
}

export interface Changes extends Compared {
  /** The successful run with which this one was compared. */
  against: string;
  /** What was not read, as a sentence. */
  limits: string;
}

/** The last run before this one whose outcome is succeeded. Raises `Problem`. */
export async function lastGood(fqn: string, run: string, signal: AbortSignal): Promise<string | null> {
  type List = { details: RunDetails[]; after: string | null };
  const own = await json<List>(logsOf(fqn), { name: run, limit: 50 }, signal);
  const began = own.details.find((one) => one.runId === run)?.began;
  let after: string | undefined;
  for (let page = 0; page < PAGES; page++) {
    const found = await json<List>(logsOf(fqn), { outcome: "succeeded", began_to: began, limit: 50, after }, signal);
    const good = found.details.find((one) => one.runId !== run && one.lines !== 0);
    if (good) return good.runId;
    if (found.after === null) return null;
    after = found.after;
  }
  return null;
}

const policies = (window as unknown as { trustedTypes?: Policies }).trustedTypes;
/** The page runs no script but its own: this is the one that it names itself. */
const policy: Policy = policies?.createPolicy("tailrace", { createScriptURL: (address) => address }) ?? { createScriptURL: (address) => address };

/** A worker that answers one piece at a time. */
class Comparer {
  private readonly worker = new Worker(policy.createScriptURL(new URL(WORKER, document.baseURI).href));

  ask(piece: Piece): Promise<Answer> {
    return new Promise((resolve, reject) => {
      this.worker.onmessage = (event: MessageEvent<Answer>) => resolve(event.data);
      this.worker.onerror = (event) => reject(new Error(event.message));
      this.worker.postMessage(piece, piece.bytes ? [piece.bytes.buffer] : []);
    });
  }

  end(): void {
    this.worker.terminate();
  }
}

interface Read {
  chars: number;
  whole: boolean;
  result: Compared | undefined;
}

/** Hands a run's text to the worker, up to the bounds. Raises `Problem`. */
async function hand(comparer: Comparer, of: Piece["of"], path: string, signal: AbortSignal, progress: (chars: number) => void): Promise<Read> {
  const reply = await get(`${path}/download`, { format: "text" }, signal);
  const reader = reply.body!.getReader();
  let whole = true;
  for (;;) {
    const { done, value } = await reader.read();
    signal.throwIfAborted();
    if (done) break;
    const { chars, more } = await comparer.ask({ of, bytes: value });
    progress(chars);
    if (more && chars <= MOST_CHARS) continue;
    whole = false;
    await reader.cancel();
    break;
  }
  const { chars, result } = await comparer.ask({ of, bytes: null });
  return { chars, whole, result };
}

/** Compares a run with one that succeeded. Raises `Problem`. */
export async function changes(fqn: string, run: string, good: string, signal: AbortSignal, progress: (chars: number) => void): Promise<Changes> {
  const comparer = new Comparer();
  try {
    const before = await hand(comparer, "good", runOf(fqn, good), signal, progress);
    const after = await hand(comparer, "run", runOf(fqn, run), signal, (chars) => progress(before.chars + chars));
    const found = after.result!;
    const limits = [
      before.whole ? "" : `Only the beginning of ${good} was read, so the rest may contain some of these lines.`,
      after.whole ? "" : "Only the beginning of this run was compared.",
      found.kinds.length < MOST_KINDS ? "" : `Only the first ${MOST_KINDS} kinds are listed.`,
    ];
    return { ...found, against: good, limits: limits.filter(Boolean).join(" ") };
  } finally {
    comparer.end();
  }
}
