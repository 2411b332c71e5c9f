// All that is known of one record, and its whole text.

import { h, time } from "./dom";
import type { RunLines } from "./lines";

export async function details(lines: RunLines, n: number): Promise<void> {
  const row = lines.row(n);
  if (!row) return;
  const { entry } = row;
  const list = h("dl");
  const add = (name: string, value: string | null): void => {
    if (value !== null) list.append(h("dt", {}, name), h("dd", {}, value));
  };
  add("time", entry.ts && time(entry.ts));
  add("level", entry.level && `${entry.level}${entry.carried ? ", of the record before it" : ""}`);
  add("id", entry.ulid);
  add("connector", entry.connector);
  for (const [name, value] of Object.entries(entry.attributes ?? {})) add(name, value);
  const text = h("pre", { tabindex: "0" }, "…");
  const dialog = h("dialog", { class: "details", "aria-label": "Record" }, list, text, h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  const found = await lines.text(entry.first, entry.first + entry.count);
  text.textContent = found.join("\n");
}
