from pathlib import Path

DEPLOY = Path(__file__).parents[2] / "deploy"
