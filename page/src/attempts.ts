// Which runs are attempts of the same: their ids differ only in the number of the attempt at the
// end (`nightly-7/attempt-2`, `1042.2`, `x_try3`), and their statuses say that number.

import { json, logsOf, type RunDetails } from "./api";

/** What attempts of one thing have in common; null for a run that is no numbered attempt. */
function baseOf(run: RunDetails): string | null {
  if (run.attempt === null) return null;
  const found = /^(.+?)[\W_]*(?:attempt|retry|try)?[\W_]*?0*(\d+)$/i.exec(run.runId);
  return found && Number(found[2]) === run.attempt ? found[1]! : null;
}

/** Runs with the attempts of one thing together, oldest first, at the place of the newest. */
export function together(runs: RunDetails[]): RunDetails[][] {
  const groups = new Map<string, RunDetails[]>();
  const rows: RunDetails[][] = [];
  for (const run of runs) {
    const base = baseOf(run);
    const there = base === null ? undefined : groups.get(base);
    if (there) there.push(run);
    else {
      const group = [run];
      rows.push(group);
      if (base !== null) groups.set(base, group);
    }
  }
  for (const group of rows) group.sort((a, b) => (a.attempt ?? 0) - (b.attempt ?? 0));
  return rows;
}

/** The latest runs of a pipeline, the one that began last first. Raises `Problem`. */
export async function latest(fqn: string, signal: AbortSignal): Promise<RunDetails[]> {
  return (await json<{ details: RunDetails[] }>(logsOf(fqn), { limit: 100 }, signal)).details;
}

/** The attempt before a run, else the run before it; null if there is none. */
export function before(runs: RunDetails[], run: string): string | null {
  const own = runs.find((one) => one.runId === run);
  if (own) {
    const base = baseOf(own);
    const attempts = base === null ? [] : runs.filter((one) => baseOf(one) === base);
    const one = attempts.filter((other) => other.attempt! < own.attempt!).sort((a, b) => b.attempt! - a.attempt!)[0];
    if (one) return one.runId;
  }
  const at = runs.findIndex((one) => one.runId === run);
  return (runs[at + 1] ?? runs.find((one) => one.runId !== run))?.runId ?? null;
}
