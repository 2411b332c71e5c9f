// Bars of a histogram, by level; a click or a drag chooses a range of time.

import { count, h, svg, time } from "./dom";
import type { Histogram } from "./find";

const LEVELS = ["FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "null"];
const HEIGHT = 56;

/** `chosen` gets the times, in milliseconds, between which somebody dragged or clicked. */
export function chart(found: Histogram, chosen: (from: number, to: number) => void): HTMLElement {
  const { buckets, step_ms: step } = found;
  const most = Math.max(1, ...buckets.map((bucket) => bucket.count));
  const picture = svg("svg", { viewBox: `0 0 ${buckets.length} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${count(found.stats.matches)} records from ${time(found.from)} to ${time(found.to)}` });
  buckets.forEach((bucket, at) => {
    let y = HEIGHT;
    for (const level of LEVELS) {
      const n = bucket.levels[level] ?? 0;
      if (!n) continue;
      const size = Math.max(1.5, (n / most) * (HEIGHT - 2));
      y -= size;
      picture.append(svg("rect", { class: `bar lv-${level}`, x: at + 0.08, y, width: 0.84, height: size }));
    }
  });
  const band = svg("rect", { class: "band", x: 0, y: 0, width: 0, height: HEIGHT });
  picture.append(band);
  const label = h("output", { class: "bars-label" }, `${time(found.from)} to ${time(found.to)}`);
  const box = h("div", { class: "bars" }, picture as unknown as HTMLElement, label);
  let start: number | null = null;
  const bucketAt = (event: PointerEvent): number => {
    const edge = picture.getBoundingClientRect();
    return Math.max(0, Math.min(buckets.length - 1, Math.floor(((event.clientX - edge.left) / edge.width) * buckets.length)));
  };
  picture.addEventListener("pointerdown", (event) => {
    start = bucketAt(event as PointerEvent);
    picture.setPointerCapture((event as PointerEvent).pointerId);
  });
  picture.addEventListener("pointermove", (event) => {
    const at = bucketAt(event as PointerEvent);
    const bucket = buckets[at];
    if (bucket) {
      const levels = LEVELS.filter((level) => bucket.levels[level]).map((level) => `${level === "null" ? "no level" : level} ${count(bucket.levels[level]!)}`);
      label.textContent = `${time(bucket.at)}: ${[count(bucket.count), ...levels].join(" · ")}`;
    }
    if (start === null) return;
    band.setAttribute("x", String(Math.min(start, at)));
    band.setAttribute("width", String(Math.abs(at - start) + 1));
  });
  picture.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [low, high] = [Math.min(start, bucketAt(event as PointerEvent)), Math.max(start, bucketAt(event as PointerEvent))];
    start = null;
    band.setAttribute("width", "0");
    chosen(Date.parse(buckets[low]!.at), Date.parse(buckets[high]!.at) + step - 1);
  });
  return box;
}
