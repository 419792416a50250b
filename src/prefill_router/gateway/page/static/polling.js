// Asks again and again: not while the page is paused or hidden, and more rarely while nobody answers.

const LONGEST = 30;

export class Polling {
  #tasks = [];
  #paused = false;
  #troubled;
  #failures = 0;

  /** @param {(error: Error | null) => void} troubled Hears of failures, and of their end. */
  constructor(troubled) {
    this.#troubled = troubled;
    document.addEventListener("visibilitychange", () => this.#wake());
  }

  /** Runs a task now, and then again so many seconds after each run. */
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

  /** Runs everything now, whatever it waits for. */
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
      if (this.#failures > 0) this.#troubled(null);
      this.#failures = 0;
    } catch (error) {
      failed = true;
      this.#failures += 1;
      this.#troubled(error);
      // Without its key the page waits until it is asked to go on.
      if (error.status === 401) this.#paused = true;
    }
    task.busy = false;
    const wait = failed ? Math.min(LONGEST, task.seconds * 2 ** Math.min(6, this.#failures)) : task.seconds;
    task.timer = setTimeout(() => {
      if (!this.#paused && !document.hidden) this.#go(task);
    }, 1000 * wait);
  }
}
