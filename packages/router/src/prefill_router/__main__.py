"""`python -m prefill_router`: the command line."""

from prefill_router.cli import main

if __name__ == "__main__":
    main()
