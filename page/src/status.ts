// What is said of a run above its lines: its outcome, whether it is live, how much there is of it.

import type { RunDetails } from "./api";
import { bytes, count, h, plural } from "./dom";
import { badge, took } from "./home";
import type { RunLines } from "./lines";
import { silence } from "./silence";

export function statusOf(lines: RunLines, known: RunDetails | null): (Node | string)[] {
  const words: Record<string, string> = { live: lines.state === "closing" ? "closing" : "live", connecting: "connecting", lost: "reconnecting", refused: "no access", ended: lines.state === "closed" ? "closed" : "finished" };
  const rate = lines.rate();
  const parts = [plural(lines.total, "line"), bytes(lines.bytes)];
  if (lines.connection === "live" && rate) parts.push(`${count(Math.ceil(rate))} lines/s`);
  const missing = silence(lines.silence);
  if (missing) parts.push(missing);
  const state = h("span", { class: `state ${lines.connection}`, title: lines.refusal || undefined }, words[lines.connection] ?? "");
  if (!known?.outcome) return [state, ` ${parts.join(" · ")}`];
  const { text, title } = took(known);
  const length = text ? [" · ", h("span", { class: "took", title }, `took ${text}${known.tookFrom === "lines" ? ", by its lines" : ""}`)] : [];
  return [badge(known), state, ` ${parts.join(" · ")}`, ...length];
}
