"""Commands of the lab; `commands` lists them for `prefill-router --help`."""
