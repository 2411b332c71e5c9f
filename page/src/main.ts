// The page: what the address names, a header with the way back, the token, the keys.

import { forget, onLogin, token } from "./api";
import { Compare } from "./compare";
import { h, toast, untoast } from "./dom";
import { PipelineList, Runs } from "./home";
import { link, placeOf } from "./place";
import { RunView } from "./run";
import { Search } from "./search";

interface Shown {
  element: HTMLElement;
  open(): Promise<void>;
  close(): void;
}

const KEYS: [string, string][] = [
  ["/ or Ctrl-F", "find"],
  ["n, N", "next match, previous match"],
  ["e, E", "first error, last error"],
  ["f or p", "follow the end, or stop following"],
  ["g or Home", "to the first line"],
  ["G or End", "to the last line, and follow"],
  ["j, k, arrows", "a line down, a line up"],
  ["Space, Page keys", "a page"],
  ["c, C", "new lines since the last success: next, previous"],
  ["a", "side by side with the attempt or run before"],
  ["w", "wrap long lines"],
  ["t", "show times"],
  ["u", "times in UTC"],
  ["h", "chart over time"],
  ["d", "download"],
  ["Ctrl-A, Ctrl-C", "select the whole run, copy"],
  ["s", "search across runs"],
  ["b", "back to the list"],
  ["?", "these keys"],
];

const THEMES = ["auto", "light", "dark"] as const;
const trail = h("nav", { class: "trail", "aria-label": "Place" });
const main = h("main", { id: "main" });
const leave = h("button", { type: "button", hidden: true, title: "Forget the token" }, "Log out");
let shown: Shown | null = null;

function theme(change = false): void {
  let at = THEMES.indexOf((localStorage.getItem("theme") ?? "auto") as (typeof THEMES)[number]);
  if (change) at = (at + 1) % THEMES.length;
  const name = THEMES[Math.max(0, at)]!;
  localStorage.setItem("theme", name);
  document.documentElement.dataset.theme = name;
  const said = `Colours: ${name === "auto" ? "as the system" : name}`;
  themeButton.title = `${said}. Press for others.`;
  themeButton.setAttribute("aria-label", said);
  if (change) toast(`${said}.`);
}
const themeButton = h("button", { type: "button", class: "theme", onclick: () => theme(true) }, "◐");

function keys(): void {
  const list = h("dl", { class: "keys" });
  for (const [key, what] of KEYS) list.append(h("dt", {}, h("kbd", {}, key)), h("dd", {}, what));
  const dialog = h("dialog", { class: "details", "aria-label": "Keys" }, h("h2", {}, "Keys"), list, h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function ask(refused: boolean): Promise<string> {
  return new Promise((resolve) => {
    const input = h("input", { type: "password", name: "token", required: true, autocomplete: "off", "aria-label": "Token" });
    const form = h("form", { method: "dialog" }, h("h2", {}, "This service asks for a token"), h("p", {}, refused ? "It refused the last token, which may have expired. Paste another one." : "Paste your token. It is kept for this tab only, until you close it."), input, h("button", { type: "submit", class: "primary" }, "Log in"), h("p", { class: "note" }, "The service's operator makes tokens with “tailrace token make”. Reading logs needs the scope read."));
    input.addEventListener("input", () => input.setCustomValidity(""));
    const dialog = h("dialog", { class: "details login", "aria-label": "Log in" }, form);
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = input.value.trim().replace(/^Bearer\s+/i, "");
      if (!/^[\x21-\x7e]+$/.test(given)) {
        input.setCustomValidity("A token is one word of plain characters.");
        input.reportValidity();
        return;
      }
      resolve(given);
      leave.hidden = false;
      dialog.close();
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

function show(): void {
  const { view, names, params } = placeOf(location.hash);
  const [fqn = "", run = ""] = names;
  shown?.close();
  untoast();
  const way: [string, string][] = [];
  if (view === "run" || view === "pipeline") way.push([fqn, link("pipeline", [fqn])]);
  if (view === "run") way.push([run, location.hash]);
  if (view === "compare") way.push([fqn, link("pipeline", [fqn])], ["Side by side", location.hash]);
  if (view === "search") way.push(["Search", location.hash]);
  trail.replaceChildren(
    h("a", { href: "#/", class: "home" }, "Tailrace"),
    ...way.flatMap(([text, href], at) => ["/", h("a", { href, "aria-current": at === way.length - 1 ? "page" : undefined, title: text }, text)]),
  );
  document.title = way.length ? `${way.at(-1)![0]} – Tailrace` : "Tailrace";
  if (view === "run") shown = new RunView(fqn, run, params);
  else if (view === "compare") shown = new Compare(fqn, [run, names[2] ?? ""]);
  else if (view === "pipeline") shown = new Runs(fqn, params);
  else if (view === "search") shown = new Search(params);
  else shown = new PipelineList(params.get("name") ?? "");
  main.className = view || "home";
  main.replaceChildren(shown.element);
  void shown.open();
}

function start(): void {
  onLogin(ask);
  leave.hidden = token() === null;
  leave.addEventListener("click", () => {
    forget();
    location.reload();
  });
  const search = h("a", { class: "button", href: "#/search", title: "Search across all runs (key s)" }, "Search");
  const help = h("button", { type: "button", class: "help", title: "Keys", "aria-label": "Keys", onclick: keys }, "?");
  document.getElementById("page")!.append(h("header", {}, trail, h("span", { class: "space" }), search, themeButton, leave, help), main);
  theme();
  addEventListener("hashchange", show);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) return;
    if (event.key === "?") keys();
    else if (event.key === "s") {
      event.preventDefault();
      location.hash = "#/search";
    } else if (event.key === "b") {
      const links = trail.querySelectorAll("a");
      location.hash = links[links.length - 2]?.getAttribute("href") ?? "#/";
    }
  });
  show();
}

start();
