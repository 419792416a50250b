// Runs before the first paint, so that the page never flashes in the other theme.
"use strict";
{
  let theme = null;
  try {
    theme = localStorage.getItem("prefill-router-theme");
  } catch {
    // Storage is off in this browser: the system's theme is used.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
