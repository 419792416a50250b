// Runs tasks periodically: not while the page is paused or hidden, and with backoff after failures.

const LONGEST = 30;

export class Polling {
  #tasks = [];
  #paused = false;
  #report;
  #failures = 0;

  /** @param {(error: Error | null) => void} report Called on each failure, and with null after the last. */
  constructor(report) {
    this.#report = report;
    document.addEventListener("visibilitychange", () => this.#wake());
  }

  /** Runs a task now, and again this many seconds after each run. */
  add(seconds, run) {
    const task = { seconds, run, timer: 0, busy: false };
    this.#tasks.push(task);
    this.#go(task);
  }

  get paused() {
    return this.#paused;
  }

  set paused(value) {
    this.#paused = value;
    this.#wake();
  }

  /** Runs all tasks now. */
  again() {
    this.#failures = 0;
    this.#tasks.forEach((task) => this.#go(task));
  }

  #wake() {
    if (!this.#paused && !document.hidden) this.again();
  }

  async #go(task) {
    clearTimeout(task.timer);
    if (task.busy) return;
    task.busy = true;
    let failed = false;
    try {
      await task.run();
      if (this.#failures > 0) this.#report(null);
      this.#failures = 0;
    } catch (error) {
      failed = true;
      this.#failures += 1;
      this.#report(error);
      // Without a key the page pauses until the user enters one.
      if (error.status === 401) this.#paused = true;
    }
    task.busy = false;
    const wait = failed ? Math.min(LONGEST, task.seconds * 2 ** Math.min(6, this.#failures)) : task.seconds;
    task.timer = setTimeout(() => {
      if (!this.#paused && !document.hidden) this.#go(task);
    }, 1000 * wait);
  }
}
