"""Which frames make up the clips of a video."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from jaxprune.data.clip_frames import dense, sampled, uniform
from jaxprune.errors import UserError


def test_five_published_clips_of_a_kinetics_video():
    """VideoMAE's evaluation: 16 frames, four apart, five clips from the first frame to the last of ten seconds."""
    found = dense(300, num_frames=16, stride=4, num_clips=5)
    assert found[:, 0].tolist() == [0, 60, 120, 179, 239] and found[-1, -1] == 299
    assert (np.diff(found) == 4).all()


def test_a_single_dense_clip_lies_in_the_middle():
    assert dense(101, num_frames=16, stride=4)[0].tolist() == list(range(20, 81, 4))


def test_a_video_that_is_too_short_begins_again():
    assert dense(10, num_frames=8, stride=2, num_clips=3).tolist() == [[0, 2, 4, 6, 8, 0, 2, 4]] * 3


def test_uniform_clips_have_a_frame_of_each_part():
    assert uniform(16, num_frames=4).tolist() == [[2, 6, 10, 14]]
    assert uniform(16, num_frames=4, num_clips=2).tolist() == [[1, 5, 9, 13], [3, 7, 11, 15]]
    assert uniform(3, num_frames=6).tolist() == [[0, 0, 1, 1, 2, 2]]


@hypothesis.given(st.integers(1, 400), st.integers(1, 20), st.integers(0, 9), st.integers(1, 6))
@hypothesis.settings(max_examples=60, deadline=None)
def test_every_frame_is_one_of_the_video(length, num_frames, stride, num_clips):
    found = sampled(length, num_frames, stride, num_clips)
    assert found.shape == (num_clips, num_frames)
    assert found.min() >= 0 and found.max() < length
    if stride and length > (num_frames - 1) * stride:
        assert (np.diff(found, axis=1) == stride).all()
        if num_clips > 1:
            assert found[0, 0] == 0 and found[-1, -1] == length - 1
    if not stride:
        # A frame lasts: it touches its part of the video, and may begin before it.
        parts = np.arange(num_frames)
        assert (found * num_frames < (parts + 1) * length).all() and ((found + 1) * num_frames > parts * length).all()


@pytest.mark.parametrize("wrong", [(0, 4, 1), (4, 0, 1), (4, 4, 0)])
def test_nothing_is_no_clip(wrong):
    length, num_frames, num_clips = wrong
    with pytest.raises(UserError, match="at least one"):
        dense(length, num_frames, 2, num_clips)
