"""G²uardFL: one round flows through the modules of the paper, top to bottom (Algorithm "G²uardFL")."""

from __future__ import annotations

import dataclasses
import os
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..aggregators.base import Aggregator, ClientId, Outcome, Round, Verdict
from ..core.clipping import clip_factors
from ..core.errors import StateError
from ..core.layout import Layer, ModelLayout
from ..core.numerics import Array, InnerProducts, inner_products
from ..core.settings import build
from ..core.state_files import SavedState, read_state, write_state
from .agreement.agreement import Sketches, Window, agree_on_average, directions, random_signs
from .agreement.examination import (
    Judgement,
    Usual,
    common_cosine,
    cosine_of,
    elimination_length,
    examine,
    explain_examination,
    moved_scores,
    opposition,
    poisoned_before,
    supported_length,
    suspected,
    update_shapes,
)
from .agreement.undoing import Block, Steps
from .config import GuardConfig, configure
from .observation import Observation
from .paper.attributes import LastRound, attribute_names, client_attributes, normalised_attributes
from .paper.clipping import average_median_norm
from .paper.clustering import Clustering, cluster_count, cluster_graph
from .paper.elimination import eliminating_coefficients, elimination_strength, group_coefficients
from .paper.graph import GraphMemory, history_share
from .paper.reasons import explain
from .paper.relations import adjacency
from .paper.scoring import Mask, ScoreBook, filter_clients, updated_scores

_KIND = "guard"
_FEWEST = 3
"""Below this many usable clients there is nothing to compare."""
_SIGNS = 3
"""How many rounds have to say, most of them, that a model was poisoned before: a few attackers of one may mislead."""
_MEANT = 0.25
"""From which cosine on accepted clients mean what their step does: to undo a backdoor, which must be in the model then,
or to get back what was taken out of it."""
_LEARNING = 0.25
"""From which mean cosine of the accepted updates on the model still learns the same from everybody. It is 0.3 to 0.7 in
training from scratch, and below 0.1 near convergence."""
_SURE = 0.99
"""From which probability on that an accepted submission belongs to a community the model goes back to before it."""
_CONVICTED = -0.5
"""Below this benign score a client was taken for an attacker, and has not shown better since."""


class G2uardFL(Aggregator):
    """The G²uardFL defence.

    Parameters
    ----------
    profile
        "paper" is each equation as printed where that can run (`GuardConfig` says where it cannot, and has the
        switches); "default" is what protects best on measurement.
    seed
        Decides everything random; the same seed and inputs give the same results.
    **settings
        Any field of `GuardConfig`.

    Examples
    --------
    >>> import numpy as np
    >>> model = {"fc.weight": np.zeros((2, 3), np.float32), "fc.bias": np.zeros(2, np.float32)}
    >>> clients = {i: {name: array + i for name, array in model.items()} for i in range(4)}
    >>> result = G2uardFL(seed=0).aggregate(model, clients)
    >>> result.weights["fc.weight"].shape, sorted(result.verdicts)
    ((2, 3), [0, 1, 2, 3])
    """

    name = "g2uardfl"
    summary = (
        "clusters clients as an attributed graph, keeps a benign score each, turns away from the malicious cluster"
    )
    takes_seed = True

    def __init__(self, profile: str = "default", *, seed: int = 0, **settings: Any) -> None:
        self._begin(configure(profile, {"seed": seed, **settings}))

    def _begin(self, config: GuardConfig) -> None:
        self.config = config
        self.round = 0
        """Rounds seen so far (r)."""
        self.median_norm = 0.0
        """The running mean of median update norms (n)."""
        self.graph = GraphMemory(config.fade_absent, config.memory_limit)
        self.scores = ScoreBook(config.seed, config.score_init, normalise=config.score_update == "printed")
        self.steps = Steps()
        self.poison_before = 0.0
        """How far attackers seem to have moved the model before the guard was there."""
        self.taken_out = 0.0
        """How far it was moved back since."""
        self.boldness = 1.0
        """Which share of what would be taken out is, halved whenever clients wanted it back."""
        self.removed: Tensor | None = None
        """What was taken out in the last round."""
        self.poison_signs: list[float] = []
        """What the last rounds with attackers said about that, one after the other."""
        self.opposition: list[float] = []
        """How far the accepted clients worked against the attackers in these rounds."""
        self.supported = False
        """Whether they undo a backdoor, so that more of it is taken out."""
        self.window = Window(config.window)
        self.usual = Usual()
        self.stage_seconds: dict[str, float] = {}
        """How long each stage of the last round took."""
        self._signature: list[list[Any]] | None = None
        self._signs: Tensor | None = None
        self._last = LastRound()

    def accept_layout(self, layout: ModelLayout) -> None:
        """Refuse a model that is not the one the guard remembers."""
        if self._signature is None:
            self._signature = layout.signature()
        elif self._signature != layout.signature():
            raise ValueError(
                "this guard has been watching a model with other parameters: make a new guard for this one"
            )

    def combine(self, round_: Round) -> Outcome:
        """One round of the defence over the usable updates."""
        self.round += 1
        clock = _StageClock()
        outcome = self._examined(round_, clock) if self.config.detector == "agreement" else self._printed(round_, clock)
        self.stage_seconds = clock.seconds
        return outcome

    def judge(self, observation: Observation) -> dict[ClientId, Verdict]:
        """The verdicts on a recorded round, which moves the guard's memory on as the round itself would have."""
        self.round += 1
        clients = observation.clients
        norms = np.exp(observation.shapes[:, 0])
        if self.config.detector == "agreement":
            judgement = self._judge_agreement(clients, observation.shapes, observation.directions)
            return explain_examination(clients, judgement, self._shares(norms, judgement.accepted), self.config)
        self.median_norm = average_median_norm(self.median_norm, norms, self.round)
        clipping = clip_factors(norms, self.median_norm)
        if len(clients) < _FEWEST:
            return self._unexamined(clients, clipping / len(clients))
        layers = tuple(Layer(name, slice(0, 0)) for name in observation.layers)
        return self._judge_graph(
            clients, layers, observation.products, observation.attributes, clipping, _StageClock()
        ).verdicts

    def _examined(self, round_: Round, clock: _StageClock) -> Outcome:
        """The default profile: the agreement graph of the last rounds."""
        config, clients = self.config, round_.clients
        shapes = update_shapes(round_.sent)
        norms = np.exp(shapes[:, 0])
        clock.lap("lengths")

        if self._signs is None:
            self._signs = random_signs(len(round_.global_vector), config.seed).to(round_.global_vector)
        sketches = directions(round_.sent, round_.global_vector, self._signs, round_.layout.layers, config.sketch_width)
        clock.lap("directions")

        judgement = self._judge_agreement(clients, shapes, sketches)
        clock.lap("agreement graph")

        accepted = judgement.accepted
        coefficients = benign = self._shares(norms, accepted)
        step = round_.weighted_sum(benign)
        wanted_back = self._wanted_back(step)
        undone = self._undone(judgement.examination.belonging > _SURE)
        if undone is not None:
            # What clients sent they learnt from the model that is given up.
            step, coefficients = -undone.step.to(step), 0 * benign
        # Among clients who are unlike, a community may be honest, and the model would lose what only its members know.
        elif config.eliminate and not wanted_back and judgement.colluding.sum() > 1 and not self.usual.unlike():
            away = judgement.colluding / judgement.colluding.sum() - benign
            poison = round_.weighted_sum(away)
            alike = common_cosine(poison, step, norms[judgement.colluding])
            # Early in training everybody's step is against whoever does not learn.
            learning = agree_on_average(sketches[accepted]) > _LEARNING
            opposed = 0.0 if learning else opposition(poison, step)
            factor = self._elimination(_norm(poison), _norm(step), alike, opposed)
            if factor > 0:
                self.removed = factor * poison
                step, coefficients = step - self.removed, benign - factor * away
                self.steps.blocks.clear()  # what was before is not worth going back to
        if config.undo and undone is None:
            self.steps.add(self.round, step)
        verdicts = explain_examination(clients, judgement, coefficients, config)
        clock.lap("aggregation")
        return Outcome(step, benign, verdicts, _note(undone, accepted))

    def _wanted_back(self, step: Tensor) -> bool:
        """Whether the accepted clients, as their `step` says, want back what was taken out in the last round.

        A line search: nothing more is taken out now then, and half as much from the next time on.
        """
        removed, self.removed = self.removed, None
        wanted = removed is not None and cosine_of(step, removed.to(step)) > _MEANT
        if wanted:
            self.boldness /= 2
        return wanted

    def _undone(self, malicious: Mask) -> Block | None:
        """How the model moved since submissions were accepted that are malicious, as is known by now.

        But not since rounds in which everybody else learnt the same, as in the round before: there is too much to lose.
        """
        rounds = np.array(self.window.rounds, dtype=np.int64)
        self.steps.forget(before=int(rounds.min(initial=self.round)))
        accepted = self.window.accepted

        def learnt_alike(number: int) -> float:
            return agree_on_average(self.window.sketches[accepted & ~malicious & (rounds == number)])

        poisoned = sorted(set(rounds[malicious & accepted].tolist()))
        before = {number: max(rounds[rounds < number], default=number) for number in poisoned}
        return self.steps.take_since([n for n in poisoned if min(map(learnt_alike, (n, before[n]))) <= _LEARNING])

    def _judge_agreement(self, clients: tuple[ClientId, ...], shapes: Array, sketches: Sketches) -> Judgement:
        config = self.config
        before = self.scores.read(clients, self.round)
        self.window.add(self.round, clients, sketches)
        convicted = self.scores.read(self.window.clients, self.round) < _CONVICTED
        examination = examine(self.window, convicted, shapes, self.usual, config)
        malicious = suspected(examination.suspicion, before, config.record_weight)
        accepted = ~malicious & (before >= config.poor_record)
        moved = moved_scores(
            before, np.maximum(examination.suspicion, malicious), config.score_step, config.recovery_step
        )
        after = self.scores.write(clients, moved, self.round)
        self.usual.add(shapes[accepted])
        self.window.note_accepted(accepted)
        # Beside noise honest updates would look alike.
        noise = examination.noise
        self.window.forget(noise)
        return Judgement(replace(examination, belonging=examination.belonging[~noise]), malicious, accepted, after)

    def _shares(self, norms: Array, accepted: Mask) -> Array:
        """For each client the factor of its update in the mean of the accepted, clipped ones."""
        if not accepted.any():
            return np.zeros(len(norms))
        result: Array = clip_factors(norms, self.usual.limit(norms[accepted])) * accepted / accepted.sum()
        return result

    def _elimination(self, poison: float, accepted: float, alike: float, opposed: float) -> float:
        """The factor of what the malicious do beyond the accepted, of length `poison`, that is taken out."""
        if not poison > 0:
            return 0.0
        usual = self.usual.length(np.array([poison]))
        self.poison_signs = [*self.poison_signs, poisoned_before(poison, usual, alike, self.config)][-_SIGNS:]
        self.opposition = [*self.opposition, opposed][-_SIGNS:]
        if len(self.poison_signs) == _SIGNS:
            self.poison_before = max(self.poison_before, float(np.median(self.poison_signs)))
            self.supported = self.supported or float(np.median(self.opposition)) > _MEANT
        left = self.poison_before - self.taken_out
        length = (
            supported_length(poison, usual)
            if self.supported
            else elimination_length(poison, accepted, usual, left, self.config)
        )
        self.taken_out += self.boldness * length
        return self.boldness * length / poison

    def _printed(self, round_: Round, clock: _StageClock) -> Outcome:
        """The paper's profile: the attributed client graph."""
        products = inner_products(
            round_.updates, round_.global_vector, [layer.columns for layer in round_.layout.layers]
        )
        norms = np.sqrt(np.maximum(np.diagonal(products.total.uu[0]), 0))
        self.median_norm = average_median_norm(self.median_norm, norms, self.round)
        clipping = clip_factors(norms, self.median_norm)
        clock.lap("lengths and angles")
        if len(round_.clients) < _FEWEST:
            outcome = self._clipped_mean(round_, clipping)
        else:
            layers = round_.layout.layers
            raw = client_attributes(
                round_.updates, round_.global_vector, self._last.updates_of(round_), layers, products
            )
            clock.lap("attributes")
            judged = self._judge_graph(round_.clients, layers, products, raw, clipping, clock)
            outcome = Outcome(round_.weighted_sum(judged.coefficients), judged.benign, judged.verdicts)
            clock.lap("aggregation")
        self._last.remember(round_)
        return outcome

    def _judge_graph(
        self,
        clients: tuple[ClientId, ...],
        layers: tuple[Layer, ...],
        products: InnerProducts,
        raw_attributes: Array,
        clipping: Array,
        clock: _StageClock,
    ) -> _GraphJudgement:
        config = self.config
        attributes = normalised_attributes(raw_attributes)
        graph_attributes, graph_edges = self.graph.smooth(
            self.round,
            clients,
            attributes,
            adjacency(products, config.edge_scaling),
            history_share(config.attribute_history, config.momentum),
            history_share(config.relation_history, config.momentum),
        )
        clock.lap("relations and graph memory")

        clustering = self._cluster(graph_attributes, graph_edges)
        clock.lap("graph clustering")

        before = self.scores.read(clients, self.round)
        filtering = filter_clients(
            clustering,
            before,
            size_weight=config.cluster_size_weight,
            score_percentile=config.score_percentile,
            distance_percentile=config.distance_percentile,
        )
        scores = updated_scores(before, filtering, clustering.soft, config.score_step, config.score_update)
        after = self.scores.write(clients, scores, self.round)

        distances, update_products = clustering.distances, products.total.uu[0]
        benign = group_coefficients(filtering.accepted, distances, clipping, config.distance_weighting)
        malicious = group_coefficients(filtering.malicious, distances, clipping, config.distance_weighting)
        strength = elimination_strength(scores, filtering.malicious, self.median_norm, config.elimination_rate)
        coefficients = eliminating_coefficients(
            benign, malicious, update_products, strength if config.eliminate else 0.0
        )
        verdicts = explain(
            clients,
            filtering,
            clustering,
            before=before,
            after=after,
            weights=coefficients,
            attributes=attributes,
            attribute_names=attribute_names(layers),
            score_percentile=config.score_percentile,
            distance_percentile=config.distance_percentile,
        )
        clock.lap("filtering and elimination")
        return _GraphJudgement(coefficients, benign, verdicts)

    def _cluster(self, attributes: Array, edges: Array) -> Clustering:
        config = self.config
        return cluster_graph(
            attributes,
            edges,
            clusters=cluster_count(
                attributes, min_clusters=config.min_clusters, min_cluster_size=config.min_cluster_size
            ),
            hidden_dim=config.hidden_dim,
            latent_dim=config.latent_dim,
            pretrain_epochs=config.pretrain_epochs,
            cluster_epochs=config.cluster_epochs,
            learning_rate=config.learning_rate,
            clustering_weight=config.clustering_weight,
            seed=int(np.random.SeedSequence([config.seed, self.round]).generate_state(1)[0]),
        )

    def _clipped_mean(self, round_: Round, clipping: Array) -> Outcome:
        clients = round_.clients
        coefficients = clipping / len(clients)
        note = f"Only {len(clients)} usable client{'s' * (len(clients) > 1)}: nothing to compare with, clipped mean."
        return Outcome(round_.weighted_sum(coefficients), coefficients, self._unexamined(clients, coefficients), note)

    def _unexamined(self, clients: tuple[ClientId, ...], weights: Array) -> dict[ClientId, Verdict]:
        reason = (
            f"Accepted unexamined: with {len(clients)} of at least {_FEWEST} clients there was nothing to compare with."
        )
        scores = self.scores.write(clients, self.scores.read(clients, self.round), self.round)
        return {
            client: Verdict("accepted", reason, benign_score=float(score), weight=float(weight))
            for client, score, weight in zip(clients, scores, weights, strict=True)
        }

    def state(self) -> SavedState:
        """The whole state: config, scores, graph, running norm and the last round's updates."""
        rows, edges = self.graph.rows, self.graph.edges
        values = {
            "config": dataclasses.asdict(self.config),
            "round": self.round,
            "median_norm": self.median_norm,
            "signature": self._signature,
            "scores": [[client, score, last] for client, (score, last) in self.scores.scores.items()],
            "rows": [[client, last] for client, (_, last) in rows.items()],
            "edges": [[first, second, last] for (first, second), (_, last) in edges.items()],
            "last_clients": list(self._last.rows),
            "window_clients": self.window.clients,
            "window_rounds": self.window.rounds,
            "window_accepted": self.window.accepted.tolist(),
            "step_rounds": [list(block.rounds) for block in self.steps.blocks],
            "usual": self.usual.seen,
            "poison_before": self.poison_before,
            "taken_out": self.taken_out,
            "boldness": self.boldness,
            "poison_signs": self.poison_signs,
            "opposition": self.opposition,
            "supported": self.supported,
        }
        arrays: dict[str, Any] = {
            "edge_strengths": np.array([strength for strength, _ in edges.values()]),
            "window_sketches": self.window.sketches,
        }
        if self.steps.blocks:
            steps = torch.stack([block.step for block in self.steps.blocks])
            arrays["steps"] = steps.view(torch.int16).cpu().numpy()  # NumPy has no bfloat16
        if self.removed is not None:
            arrays["removed"] = self.removed.cpu().numpy()
        if rows:
            arrays["row_attributes"] = np.stack([row for row, _ in rows.values()])
        if self._last.global_vector is not None and self._last.updates is not None:
            arrays["last_global"] = self._last.global_vector.cpu().numpy()
            arrays["last_updates"] = self._last.updates.cpu().numpy()
        return SavedState(_plain(values), arrays)

    def restore(self, state: SavedState) -> None:
        """Go on from a saved state, bit for bit; the saved settings replace this guard's."""
        values, arrays = state.values, state.arrays
        try:
            self._begin(build(GuardConfig, values["config"]))
            self.round, self.median_norm = int(values["round"]), float(values["median_norm"])
            self._signature = values["signature"]
            self.scores.scores = {client: (score, last) for client, score, last in values["scores"]}
            strengths = arrays["edge_strengths"]
            self.graph.edges = OrderedDict(
                ((first, second), (float(strength), last))
                for (first, second, last), strength in zip(values["edges"], strengths, strict=True)
            )
            if values["rows"]:
                self.graph.rows = OrderedDict(
                    (client, (row, last))
                    for (client, last), row in zip(values["rows"], arrays["row_attributes"], strict=True)
                )
            self.window.clients, self.window.rounds = list(values["window_clients"]), list(values["window_rounds"])
            self.window.sketches = arrays["window_sketches"]
            self.window.accepted = np.array(values["window_accepted"], dtype=bool)
            if values["step_rounds"]:
                steps = torch.from_numpy(arrays["steps"]).view(torch.bfloat16)
                self.steps.blocks = [
                    Block(tuple(rounds), step) for rounds, step in zip(values["step_rounds"], steps, strict=True)
                ]
            if "removed" in arrays:
                self.removed = torch.from_numpy(arrays["removed"])
            self.poison_before = float(values["poison_before"])
            self.taken_out = float(values["taken_out"])
            self.boldness = float(values["boldness"])
            self.poison_signs = [float(sign) for sign in values["poison_signs"]]
            self.opposition = [float(sign) for sign in values["opposition"]]
            self.supported = bool(values["supported"])
            self.usual.seen = [(length, peak) for length, peak in values["usual"]]
            if "last_global" in arrays:
                self._last.global_vector = torch.from_numpy(arrays["last_global"])
                self._last.updates = torch.from_numpy(arrays["last_updates"])
            self._last.rows = {client: row for row, client in enumerate(values["last_clients"])}
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"this guard state is incomplete ({error}): restore it from a copy or start anew"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole state to one file, atomically and without pickle."""
        write_state(path, _KIND, self.state())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> G2uardFL:
        """A guard that goes on where the saved one stopped."""
        guard = cls()
        guard.restore(read_state(path, _KIND))
        return guard


def _note(undone: Block | None, accepted: Mask) -> str:
    """What there is to say about a round as a whole."""
    sentences = []
    if undone is not None:
        why = "attackers had been accepted who are recognised now"
        sentences.append(f"The model went back to before round {undone.rounds[0]}: {why}.")
    if not accepted.any():
        outcome = "the global model was kept" if undone is None else "nothing new came in"
        sentences.append(f"Every client was refused: {outcome}.")
    return " ".join(sentences)


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))


def _plain(value: Any) -> Any:
    """NumPy integers as client ids become Python's, for JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, np.integer) else value


@dataclass(frozen=True)
class _GraphJudgement:
    coefficients: Array
    """For each client the factor of its update in the whole step."""
    benign: Array
    """The same without the elimination."""
    verdicts: dict[ClientId, Verdict]


class _StageClock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage], self._last = now - self._last, now
