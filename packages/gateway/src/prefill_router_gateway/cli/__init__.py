"""Commands of the gateway; `commands` lists them for `prefill-router --help`."""
