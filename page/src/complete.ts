// Completion of a query: names of fields, and values behind `name:`, out of what records have.

import { json } from "./api";
import { h } from "./dom";

interface Proposal {
  text: string;
  note: string;
}

const WORD = /(?:^|[\s(])(NOT\s+)?((?:[\w.]|"[^"]*")*)((?:[:=]|!=|>=?|<=?)("?[^\s()"]*))?$/;
const OPERATORS = ["AND", "OR", "NOT"];

/** Adds a list of proposals to a field; `scope` gives the other parameters of the search. */
export function completing(input: HTMLInputElement, scope: () => Record<string, string>): HTMLElement {
  const list = h("ul", { class: "proposals", role: "listbox", id: "proposals", "aria-label": "Proposals", hidden: true });
  let found: Proposal[] = [];
  let chosen = -1;
  let asked = 0;
  let start = 0;
  let abort = new AbortController();
  for (const [name, value] of Object.entries({ role: "combobox", "aria-controls": "proposals", "aria-expanded": "false", "aria-autocomplete": "list" })) input.setAttribute(name, value);

  const close = (): void => {
    found = [];
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
    const caret = input.selectionStart ?? input.value.length;
    input.setRangeText(one.text, start, caret, "end");
    close();
    input.focus();
    if (one.text.endsWith(":")) void propose();
  };
  const propose = async (): Promise<void> => {
    const caret = input.selectionStart ?? input.value.length;
    const before = input.value.slice(0, caret);
    const match = WORD.exec(before);
    const number = ++asked;
    abort.abort();
    abort = new AbortController();
    if (!match) return close();
    const [, , field = "", operator, value = ""] = match;
    chosen = -1;
    try {
      if (operator !== undefined && field) {
        const prefix = value.replace(/^"/, "");
        start = caret - value.length;
        const reply = await json<{ values: { value: string; records: number }[] }>("query/values", { ...scope(), field, prefix, limit: 12 }, abort.signal);
        if (number !== asked) return;
        found = reply.values.map((one) => ({ text: one.value, note: `${one.records}` }));
      } else {
        start = caret - field.length;
        const reply = await json<{ fields: { name: string; records: number; kind: string }[] }>("query/fields", { ...scope() }, abort.signal);
        if (number !== asked) return;
        found = reply.fields
          .filter((one) => one.name.toLowerCase().includes(field.toLowerCase()))
          .slice(0, 12)
          .map((one) => ({ text: `${one.name}:`, note: `${one.kind} · ${one.records}` }));
        if (field) found.push(...OPERATORS.filter((word) => word.startsWith(field)).map((text) => ({ text: `${text} `, note: "" })));
      }
    } catch {
      // A proposal that does not come is none; the search itself says what is wrong.
      if (number !== asked) return;
      found = [];
    }
    if (document.activeElement === input) draw();
  };
  let timer = 0;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => void propose(), 120);
  });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === " " && event.ctrlKey) {
      event.preventDefault();
      void propose();
    }
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
