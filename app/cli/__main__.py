"""`python -m app.cli` is `turnkeep`."""

from app.cli.root import main

if __name__ == "__main__":
    main()
