// How OpenMetadata's page reads a run: its requests, and what it does with the answers. Written
// anew from its hooks `useLogStream` and `usePaginatedLiveLog`, and from its earlier viewer.

const LOGS = "/api/v1/services/ingestionPipelines/logs";

/** Splits a stream of events as `@microsoft/fetch-event-source` does: every event, named or not. */
async function* dataOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    for (const frame of frames) {
      const lines = frame.split("\n").filter((line) => line.startsWith("data: "));
      if (lines.length) yield lines.map((line) => line.slice(6)).join("\n");
    }
  }
}

/** Follows a run live: appends each `logs`, keeps `after`, returns with it when a connection ends. */
window.streamed = async (fqn, run, drops) => {
  const seen = { logs: "", connections: 0, reason: undefined, error: undefined };
  let after;
  window.following = seen;
  while (seen.reason === undefined && seen.error === undefined) {
    const base = `${LOGS}/${encodeURIComponent(fqn)}/stream/${encodeURIComponent(run)}`;
    const url = after ? `${base}?after=${encodeURIComponent(after)}` : base;
    const aborted = new AbortController();
    seen.connections += 1;
    try {
      const response = await fetch(url, {
        headers: { Authorization: "Bearer any", Accept: "text/event-stream" },
        signal: aborted.signal,
      });
      for await (const data of dataOf(response)) {
        const event = JSON.parse(data);
        if (event.after) after = event.after;
        if (event.eventType === "logs") seen.logs += event.logs;
        else if (event.eventType === "complete") seen.reason = event.reason;
        else if (event.eventType === "error") seen.error = event.message;
        if (seen.connections <= drops && event.eventType === "logs") {
          aborted.abort();
          break; // events that had arrived with this one are lost too
        }
      }
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }
  return seen;
};

async function pageOf(fqn, after) {
  const asked = after === undefined ? "" : `?after=${encodeURIComponent(after)}`;
  const data = await (await fetch(`${LOGS}/${encodeURIComponent(fqn)}/last${asked}`)).json();
  return { content: data.logs ? data.logs : (data.ingestion_task ?? ""), after: data.after, total: data.total };
}

/** The earlier viewer, scrolled to its end again and again: appends each page. */
window.scrolled = async (fqn) => {
  let logs = "";
  let after;
  let pages = 0;
  do {
    const page = await pageOf(fqn, after);
    logs = logs.concat(page.content);
    after = page.after;
    window.total = page.total;
    pages += 1;
  } while (after !== undefined && Number(after) < Number(window.total));
  return { logs, pages };
};

/** The paginated reader: pages that are complete, and a last one that is read again and again. */
window.Paginated = class {
  committed = "";
  tail = "";
  cursor = undefined;
  next = undefined;

  constructor(fqn) {
    this.fqn = fqn;
  }

  static isTail(page) {
    return !page.after || (page.total !== undefined && Number(page.after) >= Number(page.total));
  }

  async load() {
    const page = await pageOf(this.fqn, this.next);
    if (Paginated.isTail(page)) {
      [this.tail, this.cursor, this.next] = [page.content, this.next, undefined];
    } else {
      this.committed += page.content;
      this.next = page.after;
    }
    return this.next !== undefined;
  }

  async poll() {
    for (;;) {
      const page = await pageOf(this.fqn, this.cursor);
      if (Paginated.isTail(page)) {
        this.tail = page.content;
        return this.committed + this.tail;
      }
      this.committed += page.content;
      this.cursor = page.after;
    }
  }
};
