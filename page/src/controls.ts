// Buttons that a key presses, too.

import { h } from "./dom";

export function keyButton(label: string, key: string, act: () => void, what = ""): HTMLButtonElement {
  return h("button", { type: "button", onclick: act, "data-key": key, title: what ? `${what} (key ${key})` : `Key ${key}`, "aria-keyshortcuts": key }, label);
}

/** A button that stays pressed until it is pressed again. */
export function toggle(label: string, key: string, on: boolean, act: (on: boolean) => void): HTMLElement {
  const button = keyButton(label, key, () => {
    on = !on;
    button.setAttribute("aria-pressed", String(on));
    act(on);
  });
  button.setAttribute("aria-pressed", String(on));
  return button;
}

/** Buttons that belong together. */
export const group = (...buttons: (HTMLElement | null)[]): HTMLElement => h("span", { class: "group" }, ...buttons);
