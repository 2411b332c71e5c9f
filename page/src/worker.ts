// The worker that compares runs: it is given the bytes of the successful run and then those of the
// other, each in pieces, and answers each piece before it is given the next.

import { Comparison, Lines, type Compared } from "./comparison";

/** Bytes of a run; none: that was its end. */
export interface Piece {
  of: "good" | "run";
  bytes: Uint8Array | null;
}

export interface Answer {
  /** Characters of the run so far, and whether more of it is wanted. */
  chars: number;
  more: boolean;
  /** What was found, at the end of the second. */
  result?: Compared;
}

const comparison = new Comparison();
const texts = { good: new Lines(), run: new Lines() };

addEventListener("message", (event: MessageEvent<Piece>) => {
  const { of, bytes } = event.data;
  const lines = texts[of].of(bytes);
  let more = true;
  if (of === "good") more = comparison.remember(lines);
  else comparison.look(lines);
  const answer: Answer = { chars: texts[of].chars, more };
  if (of === "run" && !bytes) answer.result = comparison.result();
  postMessage(answer);
});
