"""A second implementation of the paper's formulas: slow and literal, in float64, with explicit loops.

It follows the text of the paper, not the library. A model is one vector, a layer a list of positions in it. The graph
has a row and a column for every client of the federation, and G+, G- and G are whole models. Where the paper cannot be
followed as printed, the functions take the same switch as the library.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np


def dot(a, b):
    """Σ a_k b_k, rounded once at the end, so that cosines of almost equal vectors are exact."""
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def norm(v):
    return math.sqrt(dot(v, v))


def cos(a, b):
    norms = norm(a) * norm(b)
    return dot(a, b) / norms if norms > 0 else 0.0


def std(v):
    mean = math.fsum(v) / len(v)
    return math.sqrt(math.fsum((float(x) - mean) ** 2 for x in v) / len(v)) if min(v) < max(v) else 0.0


def measures(v):
    """Table "Measures of statistical characteristics", rows 2 to 10."""
    v = np.asarray(v, dtype=np.float64)
    total = math.fsum(v)
    return [
        norm(v),
        min(v),
        max(v),
        total / len(v),
        std(v),
        total,
        float(np.median(v)),
        float(np.percentile(v, 5)),
        float(np.percentile(v, 95)),
    ]


def attributes(weights, global_model, previous, layers):
    """X1 and X2 side by side, before normalisation; `previous` holds each client's Δw of the round before."""
    rows = []
    for w, before in zip(weights, previous, strict=True):
        update = w - global_model
        row = measures(w) + measures(update) + [cos(w, global_model)]
        for layer in layers:
            row += measures(w[layer]) + measures(update[layer])
            row += [cos(w[layer], global_model[layer]), cos(update[layer], before[layer])]
            row += measures(update[layer] - before[layer])
        rows.append(row)
    return np.array(rows)


def z_score(values):
    """Z-scores of a list of numbers; equal numbers (up to rounding) give zeros."""
    values = [float(value) for value in values]
    largest = max(abs(value) for value in values)
    if std(values) <= 1e-12 * largest:
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    return [(value - mean) / std(values) for value in values]


def z_score_columns(matrix):
    return np.array([z_score(column) for column in np.asarray(matrix).T]).T


def z_score_matrix(matrix):
    return np.array(z_score(np.asarray(matrix).ravel())).reshape(np.shape(matrix))


def raw_relations(weights, global_model):
    m = len(weights)
    e1, e2, e3 = np.ones((m, m)), np.zeros((m, m)), np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            if i != j:
                e1[i, j] = (1 + cos(weights[i], weights[j])) / 2
            e2[i, j] = abs(norm(weights[i]) - norm(weights[j]))
            e3[i, j] = abs(norm(weights[i] - global_model) - norm(weights[j] - global_model))
    return e1, e2, e3


def relations(weights, global_model, scaling="similarity"):
    """The adjacency matrix of the clients of one round."""
    e1, e2, e3 = raw_relations(weights, global_model)
    similarities = [z_score_matrix(e1), -z_score_matrix(e2), -z_score_matrix(e3)]
    m = len(weights)
    edges = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            for matrix in similarities:
                strength = math.tanh(max(matrix[i, j], 0.0))
                edges[i, j] += (math.exp(-strength) if scaling == "printed" else strength) / 3
    return edges


@dataclass
class FullGraph:
    """Momentum over the complete graph: a row for every client and an edge for every pair, at first zeros."""

    num_clients: int
    num_attributes: int
    attribute_history: float
    relation_history: float
    fade_absent: bool = False

    def __post_init__(self):
        self.X = np.zeros((self.num_clients, self.num_attributes))
        self.E = np.zeros((self.num_clients, self.num_clients))

    def step(self, selected: Sequence[int], attributes_now, edges_now):
        """One round; returns the sub-graph of the `selected` clients."""
        X_now, E_now = np.zeros_like(self.X), np.zeros_like(self.E)
        for i, a in enumerate(selected):
            X_now[a] = attributes_now[i]
            for j, b in enumerate(selected):
                E_now[a, b] = edges_now[i, j]
        X = self.attribute_history * self.X + (1 - self.attribute_history) * X_now
        E = self.relation_history * self.E + (1 - self.relation_history) * E_now
        for a in range(self.num_clients):
            if self.fade_absent or a in selected:
                self.X[a] = X[a]
            for b in range(self.num_clients):
                if self.fade_absent or (a in selected and b in selected):
                    self.E[a, b] = E[a, b]
        selected = list(selected)
        return self.X[selected].copy(), self.E[np.ix_(selected, selected)].copy()


def gcn(attributes_, adjacency, first, first_bias, second, second_bias):
    """Two graph convolutions of Kipf and Welling, each D^-1/2 A D^-1/2 (input) W + b, with relu between."""
    A = np.array(adjacency, dtype=np.float64)
    for i in range(len(A)):
        A[i, i] = 1.0
    D = np.diag([1 / math.sqrt(math.fsum(row)) for row in A])
    propagation = D @ A @ D
    hidden = propagation @ attributes_ @ first + first_bias
    hidden = np.where(hidden > 0, hidden, 0.0)
    return propagation @ hidden @ second + second_bias


def soft_assignment(latent, centres):
    P = np.zeros((len(latent), len(centres)))
    for i, z in enumerate(latent):
        for j, q in enumerate(centres):
            P[i, j] = math.exp(-0.5 * dot(z - q, z - q))
        P[i] /= math.fsum(P[i])
    return P


def hard_assignment(soft):
    P_hat = np.zeros(np.shape(soft))
    for i, row in enumerate(soft):
        P_hat[i, max(range(len(row)), key=lambda j: row[j])] = 1.0
    return P_hat


def reconstruction_loss(latent, adjacency):
    loss = 0.0
    for i in range(len(latent)):
        for j in range(len(latent)):
            rebuilt = 1 / (1 + math.exp(-dot(latent[i], latent[j])))
            loss -= adjacency[i, j] * math.log(rebuilt) + (1 - adjacency[i, j]) * math.log(1 - rebuilt)
    return loss


def clustering_loss(soft):
    P_hat, loss = hard_assignment(soft), 0.0
    for i in range(len(soft)):
        for j in range(len(soft[i])):
            if P_hat[i, j] > 0:
                loss += P_hat[i, j] * math.log(P_hat[i, j] / soft[i, j])
    return loss


def cluster_scores(P_hat, scores, kappa3):
    """p = κ3/m (P̂ᵀ 1) + (P̂ᵀ s) ∘ (P̂ᵀ 1)^-1, as a dict without empty clusters."""
    ones = np.ones(len(P_hat))
    sizes, sums = P_hat.T @ ones, P_hat.T @ np.asarray(scores)
    return {j: kappa3 / len(P_hat) * sizes[j] + sums[j] / sizes[j] for j in range(P_hat.shape[1]) if sizes[j] > 0}


def distances_to_centres(latent, P_hat, centres):
    difference = latent - P_hat @ centres
    return np.array([norm(row) for row in difference])


def pick_clients(latent, centres, soft, scores, *, kappa3, alpha1, alpha2):
    """The benign cluster p+, C+ and C- as sets of positions, and all distances."""
    P_hat = hard_assignment(soft)
    d = distances_to_centres(latent, P_hat, centres)
    p = cluster_scores(P_hat, scores, kappa3)
    best = max(p, key=lambda j: p[j])
    worst = min(p, key=lambda j: p[j])
    candidates = {i for i in range(len(latent)) if P_hat[i, best] == 1}
    score_limit = np.percentile(scores, alpha1)
    distance_limit = np.percentile([d[i] for i in sorted(candidates)], alpha2)
    plus = {i for i in candidates if scores[i] >= score_limit and d[i] <= distance_limit}
    if not plus:
        plus = {min(sorted(candidates), key=lambda i: d[i])}
    minus = {i for i in range(len(latent)) if P_hat[i, worst] == 1} if worst != best else set()
    return best, plus, minus, d


def updated_scores(scores, plus, minus, confidence, kappa4, rule="printed"):
    """The scores after the decisions and before tanh; `confidence[i]` is P_{i, p+}."""
    result = []
    for i, s in enumerate(scores):
        if i in plus:
            s = s + kappa4 * (abs(s) if rule == "printed" else 1 - s) * confidence[i]
        elif i in minus:
            s = s - kappa4 * (abs(s) if rule == "printed" else 1 + s)
        result.append(s)
    return np.array(result)


def average_median_norm(medians):
    """n^r, which the recursion computes, is the mean of the medians of all rounds so far."""
    return math.fsum(medians) / len(medians)


def clipped(global_model, weights, limit):
    """W̄ = G + ΔW min(1, n / ||ΔW||)."""
    update = weights - global_model
    own = norm(update)
    return global_model + update * (min(1.0, limit / own) if own > 0 else 1.0)


def softmax_weights(distances, weighting="near"):
    signed = [d if weighting == "printed" else -d for d in distances]
    return [1 / math.fsum(math.exp(other - own) for other in signed) for own in signed]


def group_model(global_model, clipped_models, distances, weighting="near"):
    """G+ or G-: the global model (once) plus the weighted clipped updates of the group."""
    model = np.array(global_model)
    for share, w in zip(softmax_weights(distances, weighting), clipped_models, strict=True):
        model = model + (w - global_model) * share
    return model


def new_global_model(global_model, G_plus, G_minus, *, gamma, blame, n):
    """G = G+ + γ blame log(1 + n) (G+ - Ḡ-), where `blame` is Σ_{C-}|s| / Σ|s|."""
    up, down = norm(G_plus - global_model), norm(G_minus - global_model)
    G_minus_limited = global_model + (G_minus - global_model) * (min(1.0, up / down) if down > 0 else 1.0)
    return G_plus + gamma * blame * math.log(1.0 + n) * (G_plus - G_minus_limited)


@dataclass
class PaperGuard:
    """Algorithm "G²uardFL", literally: the scores of all clients and the whole graph are updated every round.

    Random values are arguments: `scores` are the first scores of all clients, and `cluster` returns (Z, Q, P) for a
    sub-graph.
    """

    scores: np.ndarray
    layers: list[list[int]]
    cluster: Callable
    kappa1: float = 0.1
    kappa2: float = 0.1
    kappa3: float = 0.3
    kappa4: float = 0.5
    alpha1: float = 25.0
    alpha2: float = 75.0
    gamma: float = 0.01
    edge_scaling: str = "similarity"
    momentum: str = "history"
    fade_absent: bool = False
    distance_weighting: str = "near"
    score_update: str = "printed"
    eliminate: bool = True
    medians: list[float] = field(default_factory=list)
    last_updates: dict[int, np.ndarray] = field(default_factory=dict)
    last_global: np.ndarray | None = None

    def __post_init__(self):
        keep = [kappa if self.momentum == "history" else 1 - kappa for kappa in (self.kappa1, self.kappa2)]
        width = 19 + 29 * len(self.layers)
        self.graph = FullGraph(len(self.scores), width, *keep, fade_absent=self.fade_absent)
        self.scores = np.array(self.scores, dtype=np.float64)

    def round(self, global_model, models: dict[int, np.ndarray]):
        """One round: the new global model, the decision on each client and the share of each in the normal model."""
        selected = sorted(models)
        weights = [models[c] for c in selected]
        updates = {c: models[c] - global_model for c in selected}
        self.medians.append(float(np.median([norm(updates[c]) for c in selected])))
        n = average_median_norm(self.medians)
        short = [clipped(global_model, w, n) for w in weights]
        if len(selected) < 3:
            decisions = dict.fromkeys(selected, "accepted")
            new = global_model + sum(w - global_model for w in short) / len(short)
            if self.fade_absent:
                self.graph.step([], [], [])
        else:
            new, decisions = self._examined(global_model, selected, weights, short, n)
        if self.score_update == "printed":
            self.scores = np.array([math.tanh(s) for s in self.scores])
        self.last_global, self.last_updates = global_model, updates
        return new, decisions

    def _examined(self, global_model, selected, weights, short, n):
        raw = attributes(weights, global_model, [self._previous(c, global_model) for c in selected], self.layers)
        X, E = self.graph.step(selected, z_score_columns(raw), relations(weights, global_model, self.edge_scaling))
        Z, Q, P = self.cluster(X, E)
        s = self.scores[selected]
        best, plus, minus, d = pick_clients(Z, Q, P, s, kappa3=self.kappa3, alpha1=self.alpha1, alpha2=self.alpha2)
        s = updated_scores(s, plus, minus, P[:, best], self.kappa4, self.score_update)
        self.scores[selected] = s
        self.raw_scores = dict(zip(selected, s, strict=True))
        self.shares = dict.fromkeys(selected, 0.0)
        members = sorted(plus)
        for i, share in zip(members, softmax_weights([d[i] for i in members], self.distance_weighting), strict=True):
            length = norm(weights[i] - global_model)
            self.shares[selected[i]] = share * (min(1.0, n / length) if length > 0 else 1.0)
        new = group_model(global_model, [short[i] for i in members], [d[i] for i in members], self.distance_weighting)
        members = sorted(minus)
        if self.eliminate and members:
            G_minus = group_model(
                global_model, [short[i] for i in members], [d[i] for i in members], self.distance_weighting
            )
            blame = sum(abs(s[i]) for i in members) / sum(abs(s))
            new = new_global_model(global_model, new, G_minus, gamma=self.gamma, blame=blame, n=n)
        decisions = {
            c: "accepted" if i in plus else "malicious" if i in minus else "held_out" for i, c in enumerate(selected)
        }
        return new, decisions

    def _previous(self, client, global_model):
        if self.last_global is None:
            return np.zeros_like(global_model)
        return self.last_updates.get(client, global_model - self.last_global)
