"""What the default profile makes of a round: who is suspected, why, and what that does to the model.

Three things make a client suspected: its update belongs to a community of submissions that agree beyond chance
(`communities`); it agrees almost completely with another client of the round; or it is far longer or more peaked than
accepted updates are. A client's record, its benign score, decides doubtful cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ...aggregators.base import ClientId, Decision, Verdict
from ...core.numerics import Array, cosine
from ...core.updates import SentUpdates, each_row
from ..config import GuardConfig
from ..paper.scoring import Mask
from .agreement import Sketches, Window, agree_on_average, agreement
from .communities import FAR_LESS, FEWEST_CLIENTS, SMALLEST, Community, find_communities

_SMALLEST_SPREAD = 0.25
"""Lengths and peaks (logarithms) that vary less than this are taken to vary this much."""
_LONE = 1.4
"""By how much less the excess of a single update of a round counts. Attackers seldom come alone, and an honest update
may be thrice as long as usual."""
_TAILS = np.array([1.0, 1.5])
"""What a standard deviation of lengths and of peaks counts: single peaks of honest updates stand out further."""
_LOW = 0.25
"""Which quantile of a round's lengths is honest even if most of its clients attack, who take longer steps."""
_HIGH = 0.9
"""Above this quantile of accepted lengths a length is unusual."""
_CAUTION = 0.3
"""To which share of the lower quantile updates are clipped as long as little is known."""
_GROWTH = 2.0
"""How many times as long as usual accepted updates may be in one round."""
_ENOUGH, _CAUTIOUS = 20, 50
"""With fewer accepted updates than this to compare with, a round is compared with itself, too; and with fewer than this
the model takes small steps, so that attackers are told before it has learnt what they want."""
_CHANGED = 4.0
"""If most of a round exceed the usual by more than this, it is the usual that has changed."""
_TRIMMINGS, _TRIMMED = 3, 2.5
"""How often, and from how many standard deviations on, what is compared with is trimmed."""
_NARROWED = 0.9
"""By which factor trimming may narrow the deviation of accepted updates at most: honest ones may be of two kinds."""
_UNLIKE = 0.9
"""From which standard deviation of the logarithms of their lengths on clients are unlike: 0.4 is usual where all have
the same kind of data, and 0.6 to 0.7 under Dirichlet's 0.5; it is 1.1 to 2 under 0.05."""
_FAR = 4.0
"""How many times as long as the others' the updates of a group are that is set apart; honest ones hardly ever are."""
_NOTHING = 0.05
"""Below this mean cosine updates have next to nothing in common."""
_FLATTER = (7.0, 4.0)
"""By how much larger the largest entry of honest updates is, beside their lengths, than that of updates which hide
under noise: as long as nothing is known about lengths, and later."""
_REMEMBERED = 200
"""How many accepted updates' lengths and peaks are remembered."""
_SUPPORTED = (0.1, 10.0)
"""Which share of attackers' pull is taken out where accepted clients undo it, and how many usual updates at most."""
_SHORT_STEPS = 3.0
"""How many steps of attackers who take short ones may be taken out of the model in any case."""
_AGREES = 2.0
"""Below this agreement, in standard deviations, two updates have nothing to do with each other."""
_MANY = 0.1
"""If more than this share of honest submissions have a twin in the window, twins are nothing unusual."""
_TINY = 100.0
"""Twins whose updates are so many times shorter than usual have nothing to learn, and do no harm."""
_ALMOST_SURE = 1e-6
_ZERO_LENGTH = -700.0
"""Below this logarithm a length is zero."""


@dataclass
class Usual:
    """The lengths and peaks of the last accepted updates."""

    seen: list[tuple[float, float]] = field(default_factory=list)

    def excess(
        self, shapes: Array, allowed: float = math.inf, suspects: Mask | None = None, longer: Mask | None = None
    ) -> Array:
        """For each update how far, in robust standard deviations, its length or peak exceeds the usual.

        If most of the `shorter_ones` who are no `suspects` exceed it, it is the usual that has changed, and the round
        is compared with them. If a single one exceeds it by more than is `allowed`, that counts for less. Those who are
        `far_longer` exceed it at least as far as they are apart from the others.
        """
        moving = _moving(shapes)
        if not moving.any():
            return np.zeros(len(shapes))
        cleared = moving if suspects is None else moving & ~suspects
        others = (cleared if cleared.any() else moving).copy()
        others[others] = shorter_ones(shapes[others, 0], 1 if self.seen else self._least(others))
        own, seen = shapes[others], np.array(self.seen).reshape(-1, 2)
        known = self.is_known()
        beyond = _excess(shapes, seen, _NARROWED) if known else _excess(shapes, np.concatenate([seen, own]))
        if np.median(beyond[others]) > _CHANGED:
            beyond = _excess(shapes, own)
        if longer is not None and longer.any():
            beyond = np.where(longer, np.maximum(beyond, _apart(shapes, moving & ~longer)), beyond)
        if np.count_nonzero(beyond > allowed) == 1:
            return np.where(beyond > allowed, beyond / _LONE, beyond)
        return beyond

    def far_longer(self, shapes: Array, sketches: Sketches) -> Mask:
        """Who of a round takes steps so much longer than the others', and than accepted ones, that it must attack.

        These are two at least, set apart from the others by their lengths or, as noise makes long updates flat, by
        their peaks. Where the others have far more in common, it may be they who attack and keep their steps short:
        then nobody is far longer, unless it is as much flatter as only noise is.
        """
        nobody = np.zeros(len(shapes), dtype=bool)
        moving = _moving(shapes)
        lengths, peaks = shapes.T
        for apart in (lengths, -peaks):
            others = moving.copy()
            others[moving] = shorter_ones(apart[moving], self._least(moving))
            longer = moving & ~others
            if np.count_nonzero(longer) > 1 and lengths[longer].min() > lengths[others].max():
                break
        else:
            return nobody
        if self.seen and lengths[longer].min() <= np.quantile([length for length, _ in self.seen], _HIGH):
            return nobody
        of_longer, of_others = (agree_on_average(sketches[some]) for some in (longer, others))
        if of_longer > FAR_LESS * of_others:
            return longer
        flatter = np.median(peaks[others]) - np.median(peaks[longer]) > math.log(_FLATTER[bool(self.seen)])
        return longer if (flatter if self.seen or apart is lengths else of_others < _NOTHING) else nobody

    @staticmethod
    def _least(moving: Mask) -> int:
        return max(SMALLEST, math.ceil(_LOW * np.count_nonzero(moving)))

    def length(self, norms: Array) -> float:
        """The length of a usual update: the median over what is remembered, or over `norms` where nothing is."""
        return float(np.exp(np.median([length for length, _ in self.seen]))) if self.seen else float(np.median(norms))

    def is_known(self) -> bool:
        """Whether enough is remembered to compare with."""
        return len(self.seen) >= _ENOUGH

    def unlike(self) -> bool:
        """Whether the clients' updates differ so much in length that their data must differ much, too."""
        lengths = np.array([length for length, _ in self.seen])
        return self.is_known() and 1.4826 * float(np.median(np.abs(lengths - np.median(lengths)))) > _UNLIKE

    def limit(self, norms: Array) -> float:
        """To which length accepted updates are clipped: the median over what is remembered.

        Or, where updates grow, the lower quartile of the round's own accepted `norms`, up to twice the median. In the
        first rounds, most of which may be attackers', that quartile alone counts, and less than it: an attack is told
        as long as the model has not learnt it.
        """
        own, usual = float(np.quantile(norms, _LOW)), self.length(norms)
        return min(max(usual, own), _GROWTH * usual) if len(self.seen) >= _CAUTIOUS else _CAUTION * own

    def add(self, shapes: Array) -> None:
        """Remember accepted updates; those of idle clients say nothing."""
        added = [(float(length), float(peak)) for length, peak in shapes[_moving(shapes)]]
        self.seen = (self.seen + added)[-_REMEMBERED:]


def _moving(shapes: Array) -> Mask:
    """Who sent more than a zero update."""
    result: Mask = shapes[:, 0] > _ZERO_LENGTH
    return result


def shorter_ones(lengths: Array, least: int) -> Mask:
    """Everybody, or the shorter ones if lengths (logarithms) come in two groups with a gap wider than either of them.

    The shorter ones may be few, but at least so many: honest clients have no such gap, while attackers who hide what
    they do under noise take long steps, and may be most of a round.
    """
    ordered = np.sort(lengths)
    for count in range(least, len(ordered)):
        lower, upper = ordered[:count], ordered[count:]
        gap = upper[0] - lower[-1]
        if gap > max(math.log(_FAR), np.ptp(lower), np.ptp(upper)):
            shorter: Mask = lengths <= lower[-1]
            return shorter
    return np.ones(len(lengths), dtype=bool)


def _apart(shapes: Array, others: Mask) -> Array:
    """For each update how much longer or flatter it is than any of the others, in the smallest standard deviations."""
    (lengths, peaks), (longest, _), (_, flattest) = shapes.T, shapes[others].max(axis=0), shapes[others].min(axis=0)
    result: Array = np.maximum(lengths - longest, flattest - peaks) / _SMALLEST_SPREAD
    return result


def _excess(shapes: Array, reference: Array, narrowed: float = 0.0) -> Array:
    middle, spread = np.array([_middle_and_spread(values, narrowed) for values in reference.T]).T
    result: Array = np.max((shapes - middle) / np.maximum(spread, _SMALLEST_SPREAD) / _TAILS, axis=1)
    return result


def _middle_and_spread(values: Array, narrowed: float) -> tuple[float, float]:
    """Median and robust standard deviation of what is left when attackers, who may be many, have been trimmed off.

    The deviation is at least `narrowed` times what it was before.
    """
    spreads = []
    for _ in range(_TRIMMINGS):
        middle = float(np.median(values))
        # Of few values the median deviation says little, and may be far too large.
        spreads.append(min(1.4826 * float(np.median(np.abs(values - middle))), float(values.std())))
        values = values[values <= middle + _TRIMMED * spreads[-1]]
    return middle, max(spreads[-1], narrowed * spreads[0])


def update_shapes(updates: Tensor | SentUpdates) -> Array:
    """(clients x 2): the logarithms of each update's length and of its largest entry beside that length."""

    def length_and_peak(row: Tensor) -> tuple[float, float]:
        lowest, highest = row.aminmax()
        return float(torch.linalg.vector_norm(row, dtype=torch.float64)), max(-float(lowest), float(highest))

    lengths, peaks = np.array(each_row(updates, length_and_peak)).T
    tiny = np.finfo(np.float64).tiny
    beside = np.where(lengths > 0, peaks / np.maximum(lengths, tiny), tiny)
    return np.stack([np.log(lengths + tiny), np.log(beside)], axis=1)


@dataclass(frozen=True)
class Examination:
    """What was found out about the clients of one round."""

    suspicion: Array
    """For each client the probability that it attacks."""
    community: list[Community | None]
    """For each client the community it rather belongs to than not."""
    twin: list[int | None]
    """For each client the other one of this round that it agrees with almost completely."""
    excess: Array
    """How far length or peak exceed the usual."""
    communities: list[Community]
    belonging: Array
    """For each submission of the window the probability that it belongs to one of these."""
    known: int
    """How many clients the window holds."""
    noise: Mask
    """For each submission of the window whether it is far too long or peaked and agrees with nobody's."""


@dataclass(frozen=True)
class Judgement:
    """What is made of an examination."""

    examination: Examination
    malicious: Mask
    accepted: Mask
    scores: Array
    """Benign scores after the round."""

    @property
    def colluding(self) -> Mask:
        """The malicious clients of communities: those whose updates say where the backdoor lies."""
        belongs = np.array([one is not None for one in self.examination.community])
        result: Mask = self.malicious & belongs
        return result


def examine(window: Window, convicted: Mask, shapes: Array, usual: Usual, config: GuardConfig) -> Examination:
    """Look at a round whose updates have the given `shapes` and are the last of `window`.

    `convicted` says of each submission of the window whether its client has a bad record.
    """
    here = slice(-len(shapes), None)
    longer = usual.far_longer(shapes, window.sketches[here])
    convicted = convicted.copy()
    convicted[here] |= longer
    graph, rounds = agreement(window), np.array(window.rounds)
    lead = config.unlike_lead if usual.unlike() else config.least_lead
    communities = find_communities(
        graph, window.people(), rounds, config.least_evidence, lead, convicted, window.sketches
    )
    belonging = np.max([np.zeros(len(window.clients)), *(one.belonging for one in communities)], axis=0)
    members = belonging > 0.5
    allowed = config.outlier_excess
    excess = usual.excess(shapes, allowed, (members | convicted)[here], longer)
    twins = twins_of(graph, rounds, convicted, config.twin_agreement)
    # The further an update exceeds the usual the surer; one that hardly does leaves its client's record as it is.
    suspicion = np.where(excess > allowed, 1 - allowed / 2 / np.maximum(excess, allowed), 0.0)
    matters = shapes[:, 0] > math.log(usual.length(np.exp(shapes[:, 0])) / _TINY)
    suspicion[matters & [twin is not None for twin in twins]] = 1.0
    suspicion = np.maximum(suspicion, belonging[here])
    rows = range(len(window.clients) - len(shapes), len(window.clients))
    community = [next((one for one in communities if one.members[row]), None) for row in rows]
    noise = np.zeros_like(members)
    if usual.is_known():
        noise[here] = (excess > allowed) & (graph[here].max(axis=1) < _AGREES)
    return Examination(
        suspicion, community, twins, excess, communities, belonging, len(set(window.clients)), noise & ~members
    )


def twins_of(graph: Array, rounds: Array, convicted: Mask, least: float) -> list[int | None]:
    """For each submission of the last round the one of them it agrees with most, if by more than `least`.

    Nobody has one if most of the clients without a bad record would: it is the honest majority then that learns the
    same, as it does early in training. Nor if many submissions that have nothing to do with them agree so much with one
    of another round: honest clients with the same kind of data do.
    """
    count = int(np.count_nonzero(rounds == rounds[-1]))
    here = graph[-count:, -count:]
    agrees = here.max(axis=1) > least
    nobody: list[int | None] = [None for _ in range(count)]
    if 2 * np.count_nonzero(agrees & ~convicted[-count:]) > np.count_nonzero(~convicted[-count:]):
        return nobody
    alike = graph > least
    related = alike[-count:][agrees].any(axis=0)
    others = ~related & ~convicted
    across = alike & (rounds[:, None] != rounds[None, :])
    if others.any() and across[np.ix_(others, others)].any(axis=1).mean() > _MANY:
        return nobody
    return [int(other) if one else None for one, other in zip(agrees, here.argmax(axis=1), strict=True)]


def suspected(suspicion: Array, scores: Array, record_weight: float) -> Mask:
    """Who is taken for an attacker: more likely than not, where a bad record makes it likelier.

    The log-odds of the suspicion are raised by `record_weight` times how far the benign score lies below 0.
    """
    bounded = np.clip(suspicion, _ALMOST_SURE, 1 - _ALMOST_SURE)
    result: Mask = np.log(bounded / (1 - bounded)) - record_weight * np.minimum(scores, 0) > 0
    return result


def moved_scores(scores: Array, suspicion: Array, fall: float, rise: float) -> Array:
    """Scores move towards +1 for the unsuspected and -1 for the surely malicious, by the share `fall` or `rise`.

    The worse a score the slower it rises: who was convicted often has to prove more than who was once.
    """
    aim = 1 - 2 * suspicion
    result: Array = scores + np.where(aim < scores, fall, rise * np.minimum(1, 1 + scores)) * (aim - scores)
    return result


def common_cosine(poison: Tensor, accepted: Tensor, lengths: Array) -> float:
    """How alike malicious updates are: the mean cosine of what each does beyond the accepted clients' step.

    Their `lengths` and mean suffice: the less alike vectors are, the shorter their mean. `poison` is that mean less
    the `accepted` step.

    >>> round(common_cosine(torch.tensor([0.5, 0.5]), torch.zeros(2), np.array([1.0, 1.0])), 6)
    0.0
    """
    step, beyond = accepted.double(), poison.double()
    squared = float(beyond @ beyond)
    each = float(np.mean(lengths**2)) - 2 * float((beyond + step) @ step) + float(step @ step)
    count = len(lengths)
    return float(np.clip((count * squared / each - 1) / (count - 1), 0.0, 1.0)) if each > 0 and count > 1 else 1.0


def poisoned_before(poison: float, usual: float, alike: float, config: GuardConfig) -> float:
    """What must have come in before the guard was there, by how attackers behave, as a length.

    Attackers whose backdoor is in the model have little left to learn, and no two the same: their pull is short and
    their updates are not `alike`. Up to `elimination_allowance` usual updates; nothing from `near_pull` usual updates
    or a mean cosine of `alike_pull` on.
    """
    if not usual > 0:
        return 0.0
    learnt = max(0.0, 1 - alike / config.alike_pull) * max(0.0, 1 - poison / usual / config.near_pull)
    return config.elimination_allowance * usual * learnt


def opposition(poison: Tensor, accepted: Tensor) -> float:
    """How far the accepted clients undo what the malicious do: the cosine of their steps, with its sign turned.

    `poison` is the malicious clients' step less the `accepted` one. Only what is in the model can be undone.

    >>> opposition(torch.tensor([2.0, 0.0]), torch.tensor([-1.0, 0.0]))
    1.0
    """
    return -cosine_of(accepted, poison + accepted)


def cosine_of(one: Tensor, other: Tensor) -> float:
    """The cosine of two vectors; 0 where one of them is zero."""
    first, second = one.double(), other.double()
    product, squared, other_squared = (
        np.array(float(a @ b)) for a, b in ((first, second), (first,) * 2, (second,) * 2)
    )
    return float(cosine(product, squared, other_squared))


def supported_length(poison: float, usual: float) -> float:
    """How far to move away from the malicious updates where the accepted clients undo the backdoor themselves.

    Their own step may be tiny, and the attackers' long: they have data that says what is enough.
    """
    share, most = _SUPPORTED
    return min(share * poison, most * usual)


def elimination_length(poison: float, accepted: float, usual: float, left: float, config: GuardConfig) -> float:
    """How far to move away from what the malicious updates do beyond the accepted ones.

    `elimination_rate` times its clipped length, but at most `elimination_bound` times the step of the accepted clients.
    The further attackers still have to pull the model, the less of their backdoor is in it: nothing is taken out where
    they pull by `far_pull` usual updates or more. In all no more is taken out than what is `left`, and a few steps of
    attackers who take short ones.

    Parameters
    ----------
    poison, accepted, usual
        Lengths of the malicious mean update, of the accepted clients' step and of a usual update.
    """
    if not usual > 0:
        return 0.0
    allowed = left + _SHORT_STEPS * max(0.0, min(poison, usual - poison))
    wanted = config.elimination_rate * max(0.0, 1 - poison / usual / config.far_pull) * min(poison, usual)
    return max(0.0, min(wanted, config.elimination_bound * accepted, allowed))


def explain_examination(
    clients: Sequence[ClientId], judgement: Judgement, weights: Array, config: GuardConfig
) -> dict[ClientId, Verdict]:
    """A verdict with its reason for each client, whose update has the given weight in the new model."""
    examination, scores = judgement.examination, judgement.scores
    verdicts: dict[ClientId, Verdict] = {}
    for row, client in enumerate(clients):
        decision: Decision
        if judgement.malicious[row]:
            decision, reason = "malicious", f"Taken for an attacker: {_grounds(row, clients, examination, config)}."
        elif not judgement.accepted[row]:
            decision = "held_out"
            reason = f"Held out: nothing against this update, but its record is poor (score {scores[row]:.2f} by now)."
        elif examination.known < FEWEST_CLIENTS:
            decision = "accepted"
            reason = f"Accepted unexamined: with {examination.known} clients there was nothing to compare with."
        else:
            decision = "accepted"
            reason = "Accepted: its update agrees with nobody's beyond chance, and its length is usual."
        community = examination.community[row]
        verdicts[client] = Verdict(
            decision,
            reason,
            benign_score=float(scores[row]),
            cluster=0 if community is None else 1 + examination.communities.index(community),
            distance=float(examination.suspicion[row]),
            weight=float(weights[row]),
        )
    return verdicts


def _grounds(row: int, clients: Sequence[ClientId], examination: Examination, config: GuardConfig) -> str:
    community, twin = examination.community[row], examination.twin[row]
    if examination.excess[row] > config.outlier_excess:
        return f"its update is far longer or more peaked than usual ({examination.excess[row]:.0f} standard deviations)"
    if community is not None:
        size = int(community.members.sum())
        return (
            f"its update points the same way as {size - 1} others of the last rounds "
            f"(agreement {community.agreement:.1f}, evidence {community.evidence:.0f})"
        )
    if twin is not None:
        return f"its update agrees almost completely with that of client {clients[twin]!r}"
    return f"its update looks suspicious (probability {examination.suspicion[row]:.2f}) and its record is poor"
