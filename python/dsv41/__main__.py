"""`python -m dsv41` is the `dsv41` command."""

from dsv41.cli import run

if __name__ == "__main__":
    run()
