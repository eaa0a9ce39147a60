"""Texts that other programs read: a command line in a shell."""

import shlex
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from jaxprune.text import shell_line

LETTERS = st.characters(min_codepoint=1, exclude_categories=["Cs"])


@given(st.lists(st.text(st.one_of(st.sampled_from("'\"$`\\! =-()*~#&;|\n"), LETTERS)), max_size=4))
def test_a_shell_reads_the_words_that_were_formatted(words):
    assert shlex.split(shell_line(words)) == words


def test_bash_reads_them_too():
    words = ["--config.plans=('topk:keep_rate=0.5', 'tome')", "it's", 'a $HOME `x` \\ "', "", "--x=", "*", "--y=('!1')"]
    printed = subprocess.run(["bash", "-c", f"printf '%s\\0' {shell_line(words)}"], capture_output=True, check=True)
    assert printed.stdout.decode().split("\0")[:-1] == words


def test_quotes_stand_where_they_are_needed_and_nowhere_else():
    words = ["--config=a.py:images=photos/", "--config.plans=('topk','tome')", "--workdir=my runs"]
    assert shell_line(words) == """--config=a.py:images=photos/ --config.plans="('topk','tome')" --workdir='my runs'"""
