// Turns of live streams. Over HTTP/1.1 a browser opens six connections to a host, for all tabs and
// windows together, and a stream holds one as long as it lasts. So two views at a time have their
// streams, of those that are on screen: the others get theirs a second later, by the clock that all
// tabs have in common. Each stream resumes by its cursor. A view in a hidden tab has none.

const VIEWS_AT_ONCE = 2;
const TURN_MS = 1000;
/** A view of which nothing is heard for so long is gone, with its tab. */
const GONE_MS = 3500;

interface Word {
  here?: string[];
  left?: string;
  /** Asks the other tabs for their views. */
  asks?: boolean;
}

const channel = new BroadcastChannel("tailrace.turns");
const own = new Set<string>();
/** Views in other tabs, and when they were heard of last. */
const others = new Map<string, number>();

const say = (word: Word): void => channel.postMessage(word);

channel.onmessage = ({ data }: MessageEvent<Word>) => {
  for (const view of data.here ?? []) others.set(view, performance.now());
  if (data.left) others.delete(data.left);
  if (data.asks && own.size) say({ here: [...own] });
};
say({ asks: true });

/** Whether a view is one of those that have their streams in this second. */
function isTurnOf(view: string): boolean {
  for (const [other, heard] of others) if (heard < performance.now() - GONE_MS) others.delete(other);
  const all = [...own, ...others.keys()].sort();
  const first = (Math.floor(Date.now() / TURN_MS) * VIEWS_AT_ONCE) % all.length;
  return (all.indexOf(view) - first + all.length) % all.length < VIEWS_AT_ONCE;
}

/** The turns of one view. */
export class Turns {
  private readonly view = Math.random().toString(36).slice(2);

  constructor(private readonly closing: AbortSignal) {}

  /** Runs `act` when it is this view's turn; its signal says that the turn, or the view, is over. */
  async take<T>(act: (turn: AbortSignal) => Promise<T>): Promise<T> {
    const turn = new AbortController();
    let timer = 0;
    let begin = (): void => {};
    const begun = new Promise<void>((resolve) => (begin = resolve));
    let has = false;
    const look = (): void => {
      clearTimeout(timer);
      timer = window.setTimeout(look, TURN_MS - (Date.now() % TURN_MS));
      const ended = this.closing.aborted;
      if (ended || document.hidden) this.leave();
      else this.join();
      const mine = !ended && !document.hidden && isTurnOf(this.view);
      if (ended || (has && !mine)) turn.abort();
      if (!ended && !mine) return;
      has = true;
      begin();
    };
    document.addEventListener("visibilitychange", look);
    this.closing.addEventListener("abort", look);
    try {
      look();
      await begun;
      return await act(turn.signal);
    } finally {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", look);
      this.closing.removeEventListener("abort", look);
      this.leave();
    }
  }

  private join(): void {
    own.add(this.view);
    say({ here: [this.view] });
  }

  private leave(): void {
    if (own.delete(this.view)) say({ left: this.view });
  }
}
