"""Made-up traffic of nine targets, for the page to show; the decisions in it are real ones."""

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from packages.gateway.tests.page.example_decisions import detail_of
from packages.gateway.tests.page.example_targets import DOWN, INPUT, NAMES, OUTPUT, SKILL, health
from prefill_router.cost import CostScale
from prefill_router.errors import StoreError
from prefill_router.policy import Lambda
from prefill_router.router import VersionState, VersionStep
from prefill_router.router.decision import decide
from prefill_router_gateway.page import views
from prefill_router_gateway.page.shapes import (
    CurveView,
    DecisionDetail,
    DecisionRow,
    Decisions,
    DriftView,
    LamSet,
    Overview,
    RangeView,
    SavingsPanel,
    Spend,
    SpendWindow,
    Targets,
    Timeline,
    VersionsView,
    WhatIf,
)

SCALE = CostScale(low=2e-5, high=0.03)
STEPS = (
    VersionStep(at="2026-03-01T09:00:00+00:00", event="promoted", version="0001", by="operator"),
    VersionStep(at="2026-03-02T10:30:00+00:00", event="shadow", version="0002", by="learner"),
    VersionStep(
        at="2026-03-02T21:10:00+00:00",
        event="share",
        version="0002",
        share=0.1,
        by="learner",
        evidence={
            "why": "it isn't surely no worse yet",
            "requests": 1240,
            "quality": 0.0123,
            "e_values": {"no worse": 31.5, "cheaper": 2400.0},
        },
    ),
)


@dataclass(frozen=True)
class DecisionRecord:
    detail: DecisionDetail
    ended: int


class FakeSource:
    """Answers as a gateway does after some hours of traffic; `arrive` adds a request."""

    def __init__(self, *, seed: int = 7, requests: int = 412, ready: bool = False) -> None:
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.lam = self.configured = 0.62
        self.ready = ready
        self.broken = False
        self.incomparable = 0
        self.calls: list[str] = []
        self.tables: tuple[int, Any, Any] = (-1, None, None)
        self.records: list[DecisionRecord] = []
        self.state = VersionState(steps=STEPS)
        self.started = time.time() - 19 * 3600 - 1380
        now = time.time()
        for i in range(requests):
            self.arrive(at=now - 6 * (requests - i) - self.random.random())

    def arrive(self, *, at: float | None = None) -> str:
        """Add a request; its id."""
        input_tokens = int(self.rng.lognormal(6.2, 0.9))
        hard = self.rng.normal(0.4, 1.1)
        p = 1 / (1 + np.exp(-(np.array(SKILL) * 1.3 - hard + self.rng.normal(0, 0.35, 9))))
        output_tokens = np.array([220, 240, 260, 280, 300, 420, 480, 560, 1900])
        cost = (input_tokens * np.array(INPUT) + output_tokens * np.array(OUTPUT)) / 1e6
        decision = decide(
            NAMES,
            p,
            cost,
            SCALE,
            policy=Lambda(),
            lam=self.lam,
            input_tokens=input_tokens,
            truncated=False,
        )
        number = len(self.records)
        detail = detail_of(
            number,
            decision.to_dict(),
            input_tokens,
            at or time.time(),
            lam=self.lam,
            chance=self.random,
        )
        self.records.append(DecisionRecord(detail, number + 1))
        return detail["decision"]["id"]

    def _check(self, name: str) -> None:
        self.calls.append(name)
        if self.broken:
            raise StoreError("the receipts can't be read; see whether the database runs")

    def _tables(self) -> tuple[Any, Any, list[int]]:
        if self.tables[0] != len(self.records):
            self.tables = (len(self.records), *self._read())
        return *self.tables[1:], list(range(len(self.tables[1])))

    def _read(self) -> tuple[Any, Any]:
        details = [record.detail for record in self.records if record.detail["path"]]
        rows = [{each["target"]: each for each in detail["targets"]} for detail in details]
        p = np.array([[row[n]["probability"] for n in NAMES] for row in rows]).reshape(-1, 9)
        cost = np.array([[row[n]["estimated_cost"] for n in NAMES] for row in rows]).reshape(-1, 9)
        return p, cost

    def _at(self, lam: float) -> tuple[dict[str, float], Any]:
        p, cost, rows = self._tables()
        chosen = np.argmax(lam * p - (1 - lam) * SCALE.normalise(cost), axis=1)
        point = {"lam": lam, "accuracy": 0.0, "cost": 0.0}
        if rows:
            point["accuracy"] = float(p[rows, chosen].mean())
            point["cost"] = 1000 * float(cost[rows, chosen].mean())
        return point, chosen

    async def overview(self) -> Overview:
        self._check("overview")
        down = [f"{DOWN}: its breaker is open after 5 failures in a row"]
        return {
            "state": "ready" if self.ready else "degraded",
            "problems": [] if self.ready else down,
            "router": "9f3c1ab27d5e4c60b8aa",
            "serving": None,
            "policy": "lambda",
            "encoder": "minilm",
            "lam": self.lam,
            "lam_set": self.lam,
            "lam_configured": self.configured,
            "lam_reason": f"lam {self.configured:g}: the router's fit chose none",
            "requests_last_hour": min(len(self.records), 600),
            "fallback_share": 0.14,
            "shared": {"replicas": 3, "away_since": None},
            "uptime_seconds": time.time() - self.started,
            "version": "0.1.0",
        }

    async def timeline(self) -> Timeline:
        self._check("timeline")
        minutes: dict[int, list[DecisionRow]] = {}
        for record in self.records:
            row = record.detail["decision"]
            minutes.setdefault(int(row["at"] // 60), []).append(row)
        return {
            "until": 60.0 * (time.time() // 60 + 1),
            "minutes": [
                {
                    "at": 60.0 * minute,
                    "requests": len(rows),
                    "failed": sum(row["outcome"] == "cut" for row in rows),
                    "fallbacks": sum(row["fallback"] is not None for row in rows),
                    "cost": sum(row["cost"] or 0.0 for row in rows),
                }
                for minute, rows in minutes.items()
            ],
        }

    async def decisions(
        self, *, after: str | None, limit: int, outcome: str | None = None, part: str | None = None
    ) -> Decisions:
        self._check("decisions")
        cursor = int(after) if after is not None and after.isdigit() else 0
        every = [record.detail["decision"] for record in self.records if record.ended > cursor]
        new = [
            row for row in every if outcome in (None, row["outcome"]) and (part or "") in row["id"]
        ]
        return {"cursor": str(len(self.records)), "decisions": new[::-1][:limit]}

    async def decision(self, id: str) -> DecisionDetail | None:  # noqa: A002
        self._check("decision")
        return next(
            (record.detail for record in self.records if record.detail["decision"]["id"] == id),
            None,
        )

    async def spend(self) -> Spend:
        self._check("spend")
        now = time.time()
        day = self._window(now - now % 86_400, [record.detail for record in self.records])
        return {
            "hour": self._window(
                now - 3600,
                [
                    record.detail
                    for record in self.records
                    if record.detail["decision"]["at"] > now - 3600
                ],
            ),
            "day": day,
            "budgets": [
                {
                    "key": None,
                    "per": "day",
                    "dollars": 5.0,
                    "spent": day["cost"] or 0.0,
                    "soften_from": 0.5,
                    "stop": False,
                    "resets_at": now - now % 86_400 + 86_400,
                    "leased": 0.05,
                },
                {
                    "key": "web",
                    "per": "hour",
                    "dollars": 0.8,
                    "spent": 0.61,
                    "soften_from": 0.6,
                    "stop": True,
                    "resets_at": now - now % 3600 + 3600,
                    "leased": 0.05,
                },
            ],
        }

    def _window(self, since: float, details: list[DecisionDetail]) -> SpendWindow:
        costs_by_target: dict[str, list[float]] = {}
        for detail in details:
            row = detail["decision"]
            costs_by_target.setdefault(str(row["target"]), []).append(row["cost"] or 0.0)
        alone = {
            name: sum(
                each["estimated_cost"] or 0.0
                for detail in details
                for each in detail["targets"]
                if each["target"] == name
            )
            for name in NAMES
        }
        target_rows = sorted(
            (
                {"target": name, "requests": len(costs), "cost": sum(costs)}
                for name, costs in costs_by_target.items()
            ),
            key=lambda each: -float(str(each["cost"])),
        )
        return {
            "since": since,
            "requests": len(details),
            "cost": sum(sum(costs) for costs in costs_by_target.values()),
            "unknown": 0,
            "by_target": target_rows,  # type: ignore[typeddict-item]
            "by_key": [
                {"key": "web", "requests": len(details) // 2, "cost": 0.61},
                {"key": None, "requests": len(details) - len(details) // 2, "cost": 0.2},
            ],
            "baseline": NAMES[7] if details else None,
            "compared": len(details) - self.incomparable,
            "compared_cost": sum(sum(costs) for costs in costs_by_target.values()),
            "at_baseline": alone[NAMES[7]] if details else None,
        }

    async def savings(self) -> SavingsPanel:
        self._check("savings")
        if not self.records:
            return {"problem": "no receipt in that time names a baseline", "savings": None}
        window = self._window(self.started, [record.detail for record in self.records])
        cost, there = window["compared_cost"], window["at_baseline"] or 0.0
        difference = there - cost

        def about(value: float, half: float) -> RangeView:
            return {"value": value, "low": value - half, "high": value + half}

        return {
            "problem": None,
            "savings": {
                "since": self.started,
                "baseline": NAMES[7],
                "chosen_by": "receipts",
                "requests": window["compared"],
                "spent": cost,
                "at_baseline": there,
                "saved": about(difference, 0.07 * there),
                "share": about(difference / there, 0.07),
                "net": about(difference - 0.0214, 0.07 * there),
                "deducted": [
                    {"kind": "encoder", "dollars": None, "items": 380},
                    {"kind": "judges", "dollars": 0.0062, "items": 41},
                    {"kind": "side answers", "dollars": 0.0152, "items": 38},
                ],
                "expected": 0.847,
                "expected_baseline": 0.861,
                "expected_gain": about(-0.014, 0.006),
                "observed": about(0.83, 0.09),
                "scored": 41,
                "notes": [
                    "counted apart, for a target that the client named: 29 requests, $0.0441",
                    "the encoder isn't counted: no price is set (380 forecasts)",
                ],
            },
        }

    async def versions(self) -> VersionsView:
        self._check("versions")
        return views.versions(
            self.state, "version 0001; version 0002 (candidate, 10 % of conversations)"
        )

    async def curve(self) -> CurveView:
        self._check("curve")
        p, cost, rows = self._tables()
        first = self.records[0].detail["decision"]["at"] if self.records else None
        return {
            "since": first,
            "requests": len(rows),
            "points": [self._at(i / 100)[0] for i in range(101)] if rows else [],  # type: ignore[misc]
            "singles": [
                {
                    "target": name,
                    "accuracy": float(p[:, i].mean()),
                    "cost": 1000 * float(cost[:, i].mean()),
                }
                for i, name in enumerate(NAMES)
                if rows
            ],
        }

    async def whatif(self, lam: float) -> WhatIf:
        self._check("whatif")
        (now, before), (then, chosen) = self._at(self.lam), self._at(lam)
        moves: dict[tuple[str, str], int] = {}
        for a, b in zip(before, chosen, strict=True):
            if a != b:
                moves[NAMES[a], NAMES[b]] = moves.get((NAMES[a], NAMES[b]), 0) + 1
        return {
            "now": now,  # type: ignore[typeddict-item]
            "then": then,  # type: ignore[typeddict-item]
            "requests": len(before),
            "changed": int((before != chosen).sum()),
            "moves": [
                {"origin": a, "to": b, "requests": n}
                for (a, b), n in sorted(moves.items(), key=lambda item: -item[1])
            ],
        }

    async def targets(self) -> Targets:
        self._check("targets")
        since = time.time() - 3600
        return {
            "prices_date": "2026-11-20",
            "since": since,
            "targets": [health(i) for i in range(9)],
        }

    async def drift(self) -> DriftView:
        self._check("drift")
        psi = {
            "component 3": 0.31,
            "component 1": 0.14,
            "prompt tokens": 0.112,
            "component 7": 0.06,
            "component 2": 0.041,
            "component 5": 0.018,
        }
        return {
            "watched": True,
            "requests": len(self.records),
            "needed": 200,
            "mean": 0.1135 if self.records else None,
            "features": [{"feature": k, "psi": v} for k, v in psi.items() if self.records],
        }

    async def set_lam(self, lam: float) -> LamSet:
        self._check("set_lam")
        before, self.lam = self.lam, lam
        return {"lam": lam, "before": before}
