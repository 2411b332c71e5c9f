// Copying and saving: bytes as they are stored, also of lines that are not on screen.

import { address, get, runOf, token } from "./api";
import { rawColumn } from "./ansi";
import { count, h, plural, toast } from "./dom";
import type { RunLines } from "./lines";

const MOST_LINES = 2_000_000;

type At = [number, number];

/** Puts the text between two places (line, column of what is shown) on the clipboard. */
export async function copyRange(lines: RunLines, from: At, to: At, event: ClipboardEvent): Promise<void> {
  event.preventDefault();
  const whole = to[1] === 0 && to[0] > from[0];
  const end = whole ? to[0] : to[0] + 1;
  const here = lines.textHere(from[0], end);
  if (here) {
    event.clipboardData?.setData("text/plain", cut(here, from, to, whole));
    toast(`Copied ${plural(end - from[0], "line")}.`);
    return;
  }
  if (end - from[0] > MOST_LINES) {
    toast("That is more than a clipboard holds. Download the run instead.");
    return;
  }
  const text = lines
    .text(from[0], end, (n) => toast(`Copying ${count(n)} of ${plural(end - from[0], "line")}…`, true))
    .then((found) => cut(found, from, to, whole));
  await put(text, end - from[0]);
}

function cut(lines: string[], from: At, to: At, whole: boolean): string {
  const last = lines.length - 1;
  const shown = lines.slice();
  if (!whole && to[1] >= 0) shown[last] = upTo(lines[last]!, to[1]);
  if (from[1] > 0) {
    const column = rawColumn(lines[0]!, from[1]);
    shown[0] = shown[0]!.slice(column);
  }
  return whole ? `${shown.join("\n")}\n` : shown.join("\n");
}

function upTo(line: string, column: number): string {
  return line.slice(0, rawColumn(line, column));
}

async function put(text: Promise<string>, lines: number): Promise<void> {
  try {
    if (navigator.clipboard && "ClipboardItem" in window) {
      const blob = text.then((found) => new Blob([found], { type: "text/plain" }));
      await navigator.clipboard.write([new ClipboardItem({ "text/plain": blob })]);
    } else await byHand(await text);
    toast(`Copied ${plural(lines, "line")}.`);
  } catch {
    await byHand(await text.catch(() => ""));
  }
}

/** Without the right to write to the clipboard (plain HTTP), a person copies from a field. */
async function byHand(text: string): Promise<void> {
  if (!text) {
    toast("The lines could not be read. Try again.");
    return;
  }
  const field = h("textarea", { readonly: true, "aria-label": "Lines to copy" });
  field.value = text;
  const dialog = h("dialog", { class: "details" }, h("p", {}, "The lines are here. Copy them with Ctrl-C."), field, h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  field.select();
}

/** Saves what an address gives as a file. With a token it is fetched, since links send none. */
export async function save(path: string, name: string): Promise<void> {
  let href = path;
  if (token()) {
    toast("Reading the whole file…", true);
    href = URL.createObjectURL(await (await get(path)).blob());
    toast("Saved.");
  }
  const anchor = h("a", { href, download: name.replace(/[^\w.-]+/g, "_") });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  if (href !== path) setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

/** Saves a whole run. Raises `Problem`. */
export const saveRun = (fqn: string, run: string): Promise<void> => save(address(`${runOf(fqn, run)}/download`), `${fqn}-${run}.log`);

/** Saves what matches in a run. Raises `Problem`. */
export const saveMatches = (fqn: string, run: string, q: string): Promise<void> =>
  save(address("query", { fqn, run, q, from: 0, order: "asc", format: "text" }), `${fqn}-${run}-matches.log`);
