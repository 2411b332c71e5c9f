// Completion of a query: names of fields, and values behind `name:`, out of what records have.

import { json } from "./api";
import { count, h } from "./dom";

interface Looked {
  /** Records that were looked at, and whether no others match. */
  records: number;
  all_records: boolean;
}

/** How many records have it; where not all were looked at, of how many. */
const howMany = (n: number, looked: Looked): string => (looked.all_records ? count(n) : `${count(n)} of the newest ${count(looked.records)}`);

interface Proposal {
  text: string;
  note: string;
}

/** What the caret stands behind: the beginning of a name, or of a value of `field`. */
interface Place {
  start: number;
  field?: string;
  typed: string;
}

const WORD = /(?:^|[\s(])(NOT\s+)?((?:[\w.]|"[^"]*")*)((?:[:=]|!=|>=?|<=?)("?[^\s()"]*))?$/;
const OPERATORS = ["AND", "OR", "NOT"];
const SHOWN = 12;
const PAUSE_MS = 120;

function placeBehind(before: string): Place | null {
  const match = WORD.exec(before);
  if (!match) return null;
  const [, , name = "", operator, value = ""] = match;
  if (operator === undefined || !name) return { start: before.length - name.length, typed: name };
  return { start: before.length - value.length, field: name, typed: value.replace(/^"/, "") };
}

/** Whether a proposal completes what is typed there. */
function completes(text: string, { field, typed }: Place): boolean {
  if (OPERATORS.includes(text.trimEnd())) return typed !== "" && text.startsWith(typed);
  const [one, other] = [text.replace(/^"/, "").toLowerCase(), typed.toLowerCase()];
  return field === undefined ? one.includes(other) : one.startsWith(other);
}

/** Adds a list of proposals to a field; `scope` gives the other parameters of the search. */
export function completing(input: HTMLInputElement, scope: () => Record<string, string>): HTMLElement {
  const list = h("ul", { class: "proposals", role: "listbox", id: "proposals", "aria-label": "Proposals", hidden: true });
  let offered: Proposal[] = []; // by the service
  let found: Proposal[] = []; // those of them that are shown
  let place: Place = { start: 0, typed: "" }; // for which they were offered
  let chosen = -1;
  let timer = 0;
  let abort = new AbortController();
  for (const [name, value] of Object.entries({ role: "combobox", "aria-controls": "proposals", "aria-expanded": "false", "aria-autocomplete": "list" })) input.setAttribute(name, value);

  const forget = (): void => {
    clearTimeout(timer);
    abort.abort();
  };
  /** Takes the list away, and what is asked for: nothing opens it but the next key. */
  const close = (): void => {
    forget();
    found = offered = [];
    draw();
  };
  const draw = (): void => {
    list.hidden = !found.length;
    input.setAttribute("aria-expanded", String(found.length > 0));
    list.replaceChildren(
      ...found.map((one, at) =>
        h("li", { role: "option", id: `proposal-${at}`, "aria-selected": String(at === chosen), onpointerdown: (event: Event) => { event.preventDefault(); take(at); } }, h("span", {}, one.text), h("small", {}, one.note)),
      ),
    );
    if (chosen >= 0 && found.length) input.setAttribute("aria-activedescendant", `proposal-${chosen}`);
    else input.removeAttribute("aria-activedescendant");
  };
  const take = (at: number): void => {
    const one = found[at];
    if (!one) return;
    input.setRangeText(one.text, place.start, input.selectionStart ?? input.value.length, "end");
    close();
    input.focus();
    if (one.text.endsWith(":")) void propose();
  };
  const behind = (): Place | null => placeBehind(input.value.slice(0, input.selectionStart ?? input.value.length));
  const ask = async ({ field, typed }: Place, signal: AbortSignal): Promise<Proposal[]> => {
    if (field === undefined) {
      const reply = await json<{ fields: { name: string; records: number; kind: string }[] } & Looked>("query/fields", scope(), signal);
      const names = reply.fields.map((one) => ({ text: `${one.name}:`, note: `${one.kind} · ${howMany(one.records, reply)}` }));
      return [...OPERATORS.map((word) => ({ text: `${word} `, note: "" })), ...names];
    }
    const reply = await json<{ values: { value: string; records: number }[] } & Looked>("query/values", { ...scope(), field, prefix: typed, limit: SHOWN }, signal);
    return reply.values.map((one) => ({ text: one.value, note: howMany(one.records, reply) }));
  };
  const propose = async (): Promise<void> => {
    forget();
    const asked = behind();
    if (!asked) return;
    abort = new AbortController();
    const { signal } = abort;
    let reply: Proposal[] = [];
    try {
      reply = await ask(asked, signal);
    } catch {
      // A proposal that does not come is none; the search itself says what is wrong.
    }
    if (signal.aborted || document.activeElement !== input) return;
    place = asked;
    offered = reply;
    narrow();
  };
  /** Shows what fits what is typed by now. */
  const narrow = (): void => {
    const now = behind();
    if (now?.start !== place.start || now.field !== place.field) found = [];
    else found = offered.filter((one) => completes(one.text, now)).slice(0, SHOWN);
    chosen = -1;
    draw();
  };
  // Until the next proposals come, those that no longer fit go at once, so that no key takes them.
  input.addEventListener("input", () => {
    narrow();
    clearTimeout(timer);
    timer = window.setTimeout(() => void propose(), PAUSE_MS);
  });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      void propose();
    }
    if (event.key === "Enter" && chosen < 0) close();
    if (!found.length) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      event.stopPropagation();
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : found.length + (chosen < 0 ? 1 : 0) - 1)) % found.length;
      draw();
    } else if ((event.key === "Enter" && chosen >= 0) || event.key === "Tab") {
      event.preventDefault();
      event.stopImmediatePropagation();
      take(Math.max(0, chosen));
    } else if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
  });
  return list;
}
