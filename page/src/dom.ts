// Elements without markup: whatever comes from a log or a name is text, never HTML.

type Child = Node | string | null | undefined | false;
type Props = Record<string, unknown>;

/** An element with properties (`class`, `on…` handlers, attributes) and children. */
export function h<K extends keyof HTMLElementTagNameMap>(
  name: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value as EventListener);
    else if (value === true) element.setAttribute(key, "");
    else element.setAttribute(key, String(value));
  }
  element.append(...children.filter((child): child is Node | string => !!child));
  return element;
}

/** An SVG element with attributes. */
export function svg(name: string, attributes: Record<string, string | number> = {}, ...children: Node[]): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...children);
  return element;
}

const number = new Intl.NumberFormat("en");
export const count = (n: number): string => number.format(n);

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function bytes(n: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) {
    n /= 1000;
    at++;
  }
  return `${at && n < 10 ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}

/** A length of time in its two largest units: `3 m 5 s`. */
export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

let utc = localStorage.getItem("utc") === "yes";
export const isUtc = (): boolean => utc;
export function setUtc(value: boolean): void {
  utc = value;
  localStorage.setItem("utc", value ? "yes" : "no");
}

const two = (n: number): string => String(n).padStart(2, "0");

/** A time as `2026-11-23 18:50:01.250`, or without the date. */
export function time(value: string | number, withDate = true): string {
  const at = new Date(value);
  if (Number.isNaN(at.getTime())) return String(value);
  const of = utc
    ? [at.getUTCFullYear(), at.getUTCMonth(), at.getUTCDate(), at.getUTCHours(), at.getUTCMinutes(), at.getUTCSeconds(), at.getUTCMilliseconds()]
    : [at.getFullYear(), at.getMonth(), at.getDate(), at.getHours(), at.getMinutes(), at.getSeconds(), at.getMilliseconds()];
  const [year, month, day, hour, minute, second, ms] = of as [number, number, number, number, number, number, number];
  const clock = `${two(hour)}:${two(minute)}:${two(second)}.${String(ms).padStart(3, "0")}`;
  return withDate ? `${year}-${two(month + 1)}-${two(day)} ${clock}` : clock;
}

/** A sentence and a button that does something about it. */
export function sayIn(place: HTMLElement, text: string, label: string, act: () => void): void {
  place.replaceChildren(`${text} `, h("button", { type: "button", onclick: act }, label));
}

let toastTimer = 0;
/** A short message at the bottom of the page, which screen readers say too. */
export function toast(text: string, lasting = false): void {
  let box = document.getElementById("toast");
  if (!box) {
    box = h("div", { id: "toast", role: "status" });
    document.body.append(box);
  }
  box.textContent = text;
  box.classList.add("shown");
  clearTimeout(toastTimer);
  if (!lasting) toastTimer = window.setTimeout(untoast, 4000);
}

/** Takes the message away: it was about what is not shown any more. */
export function untoast(): void {
  document.getElementById("toast")?.classList.remove("shown");
}
