"""Near-dedup: pinned signatures, recall and precision against the exact similarity, components."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudshard.errors import RecipeError
from cloudshard.reduce.clusters import chosen, components, least_labels, propagate
from cloudshard.reduce.minhash import (
    MinHash,
    Signer,
    band_hashes,
    candidate_pairs,
    estimated_similarity,
    expected_recall,
    jaccard,
    shingles,
    word_hashes,
)


def test_signatures_are_pinned() -> None:
    signatures, numbers = Signer(MinHash(num_perm=4, ngram=2, seed=1)).sign(
        ["The quick brown fox", None, "...", "the QUICK, brown: fox!", "fox"]
    )
    assert numbers.tolist() == [0, 3, 4]
    assert signatures.tolist() == [
        [745178945, 55541002, 2238083633, 1392369009],
        [745178945, 55541002, 2238083633, 1392369009],
        [3735141152, 3533086492, 4151031046, 2556473893],
    ]


def test_a_signature_is_the_least_of_the_permutations_one_by_one() -> None:
    signer = Signer(MinHash(num_perm=16))
    text = " ".join(f"w{n % 700}" for n in range(3000))
    hashes = shingles(np.array(word_hashes(text, {}), np.uint64), 5)
    wanted = [
        min((int(a) * (int(h) & 0xFFFFFFFF) + int(b)) % 2**64 >> 32 for h in hashes) for a, b in zip(signer._a, signer._b, strict=True)
    ]
    assert signer.sign([text])[0][0].tolist() == wanted


def planted() -> tuple[list[str], np.ndarray]:
    """Texts, and copies of some with a few words replaced."""
    rng = np.random.default_rng(3)
    words = [f"word{n}" for n in range(3000)]
    texts = [" ".join(words[n] for n in rng.integers(0, 3000, 200)) for _ in range(150)]
    for source in range(100):
        copied = texts[source].split()
        for at in rng.integers(0, 200, int(rng.integers(0, 12))).tolist():
            copied[at] = "changed"
        texts.append(" ".join(copied))
    return texts, rng.permutation(len(texts))


def test_recall_and_precision_against_the_exact_similarity() -> None:
    texts, order = planted()
    texts = [texts[n] for n in order]
    parameters = MinHash(threshold=0.7)
    signatures, documents = Signer(parameters).sign(texts)
    sets = [shingles(np.array(word_hashes(text, {}), np.uint64), 5) for text in texts]
    bands = band_hashes(signatures, parameters.banding())
    found = candidate_pairs(bands.ravel(), np.repeat(documents, bands.shape[1]))
    kept = found[estimated_similarity(signatures[found[:, 0]], signatures[found[:, 1]]) >= parameters.threshold - 0.08]
    true = {(a, b) for a in range(len(texts)) for b in range(a + 1, len(texts)) if jaccard(sets[a], sets[b]) >= parameters.threshold}
    got = {(int(a), int(b)) for a, b in kept}
    assert len(true) > 40
    assert len(true & got) / len(true) >= 0.9
    assert all(jaccard(sets[a], sets[b]) >= parameters.threshold - 0.2 for a, b in got)


def test_bands_find_what_is_at_the_threshold() -> None:
    for threshold in (0.5, 0.7, 0.8, 0.9):
        banding = MinHash(threshold=threshold).banding()
        assert banding.bands * banding.rows <= 128
        assert expected_recall(banding, threshold) >= 0.9
        assert expected_recall(banding, threshold / 2) < 0.5
    for wrong in (MinHash(num_perm=1), MinHash(threshold=0), MinHash(ngram=0)):
        with pytest.raises(RecipeError, match="not possible"):
            wrong.check()


PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40)


def by_hand(pairs: list[tuple[int, int]]) -> dict[int, int]:
    label = {document: document for pair in pairs for document in pair}
    for _ in label:
        for a, b in pairs:
            label[a] = label[b] = min(label[a], label[b])
    return label


@settings(max_examples=200, deadline=None)
@given(PAIRS)
def test_components(pairs: list[tuple[int, int]]) -> None:
    documents, labels = components(np.array(pairs, np.int64).reshape(-1, 2))
    assert dict(zip(documents.tolist(), labels.tolist(), strict=True)) == by_hand(pairs)


@settings(max_examples=100, deadline=None)
@given(PAIRS, st.integers(1, 4))
def test_label_propagation_over_partitions_ends_with_the_same_labels(pairs: list[tuple[int, int]], partitions: int) -> None:
    parts = [np.array(pairs[n::partitions], np.int64).reshape(-1, 2) for n in range(partitions)]
    documents, labels = np.empty(0, np.int64), np.empty(0, np.int64)
    for _ in range(40):
        results = [propagate(part, documents, labels) for part in parts]
        documents, labels = least_labels(
            np.concatenate([documents, *(one[0] for one in results)]), np.concatenate([labels, *(one[1] for one in results)])
        )
        if not any(changed for _, _, changed in results):
            break
    else:
        pytest.fail("no end")
    assert dict(zip(documents.tolist(), labels.tolist(), strict=True)) == by_hand(pairs)


def test_a_long_chain_is_one_component() -> None:
    chain = np.stack([np.arange(50_000), np.arange(1, 50_001)], axis=1)
    rng = np.random.default_rng(0)
    documents, labels = components(rng.permutation(chain))
    assert len(documents) == 50_001
    assert set(labels.tolist()) == {0}


def test_who_stays() -> None:
    documents, labels = np.array([1, 2, 3, 7, 9]), np.array([1, 1, 1, 7, 7])
    assert chosen(documents, labels).tolist() == [1, 7]
    assert chosen(documents, labels, np.array([5.0, 4.0, 4.0, 2.0, 1.0])).tolist() == [2, 9]
