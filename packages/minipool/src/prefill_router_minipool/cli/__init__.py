"""Commands of the tiny pool and the demo; `commands` lists them for `prefill-router --help`."""
