"""Shell text is read as a shell reads it, without executing anything."""

import pytest
from subtest_table import table

from training.foreign.shell_text import LONGEST_TEXT, read
from training.foreign.shell_values import Unresolved
from training.foreign.shell_words import ShellTextError


def words(text):
    """The words of the last command."""
    return read(text).commands[-1].words


@table(
    ("text", "expected"),
    [
        ("M=Qwen/Q3\ntrain --m $M --n ${M##*/} --o ${M%/*} --p \"$M x\" --q '$M'",
         ["train", "--m", "Qwen/Q3", "--n", "Q3", "--o", "Qwen", "--p", "Qwen/Q3 x", "--q", "$M"]),
        ("train --a 1 \\\n  --b 2 \\", ["train", "--a", "1", "--b", "2"]),
        ("train --a 1  # --b 2", ["train", "--a", "1"]),
        ("export BS=4 N=8; G=$((64 / BS / $N)); train --g=$G --h=${G}x", ["train", "--g=2", "--h=2x"]),
        ("A=(--a 1 --b 'x y'); A+=(--c); train \"${A[@]}\" ${#A[@]}", ["train", "--a", "1", "--b", "x y", "--c", "5"]),
        ("C='train --a 1'\n$C --b", ["train", "--a", "1", "--b"]),
        ("train --a ${X:-5} --b ${Y:=a/${X:-z}} --c \"${Z:+no}\"", ["train", "--a", "5", "--b", "a/z", "--c"]),
        ("A=1 B=2 train --a x 2>&1 | cat", ["cat"]),
        ("train $EMPTY_LIST \"$@\"", ["train", "$EMPTY_LIST"]),
        ("N=a.b.c; train ${N%%.*} ${N%.*} ${N#*.} ${N/b/d} ${N:2:1} ${N^^}", ["train", "a", "a.b", "b.c", "a.d.c", "b", "A.B.C"]),
        ("N=4; train $(expr 32 / $N / 2) `expr 3 \\* $N` $(which tool) \"$(command -v t-1)\"", ["train", "4", "12", "tool", "t-1"]),
        ("#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:8\ntrain $SLURM_NNODES $SLURM_GPUS_ON_NODE", ["train", "2", "8"]),
    ],
)  # fmt: skip
def test_words_are_those_that_the_shell_would_pass(text, expected):
    assert words(text) == expected


@table(
    ("text", "reason"),
    [
        ("train $X", "needs X, which the text does not set"),
        ("train $1", "is an argument of the script"),
        ("train $(rm -rf /)", "is what a command prints"),
        ("train $(expr $X / 2)", "is what a command prints"),
        ("train `date`", "is what a command prints"),
        ("for x in 1 2; do train $x; done", "differs in each round of a loop"),
        ("if [ -n \"$A\" ]; then x=1; else x=2; fi; train $x", "depends on a condition of the script"),
        ("train $((X * 2))", "is computed from what the text does not set"),
    ],
)  # fmt: skip
def test_a_value_that_the_text_does_not_say_has_its_reason(text, reason):
    value = words(text)[-1]
    assert isinstance(value, Unresolved)
    assert value.reason == reason


def test_loops_that_read_arguments_do_not_change_what_is_set_before():
    assert words('B=4\nwhile [[ $# -gt 0 ]]; do case "$1" in -b) B="$2"; shift;; esac; done\ntrain $B') == [
        "train",
        "4",
    ]


def test_a_comment_or_blank_behind_a_backslash_ends_the_command():
    commands = [command.words for command in read("train --a 1 \\\n  # --b 2 \\\n  --c 3").commands]
    assert commands == [["train", "--a", "1"], ["--c", "3"]]


def test_a_here_document_is_a_file_of_the_script():
    script = read('cat > ds.json <<EOF\n{"a": 1}\nEOF\ntrain --deepspeed ds.json')
    assert script.files == {"ds.json": '{"a": 1}\n'}
    assert script.commands[-1].words == ["train", "--deepspeed", "ds.json"]
    assert read("B=4\ncat > $B.json <<EOF\n{'b': $B}\nEOF\n").files == {"4.json": "{'b': 4}\n"}
    assert read("cat > a <<'EOF'\n$B\nEOF\n").files == {"a": "$B\n"}


@table(
    "text",
    [
        "x" * (LONGEST_TEXT + 1),
        "a=xxxxxxxxxx\n" + "a=$a$a\n" * 40,
        'a=("" "")\n' + 'a=("${a[@]}" "${a[@]}")\n' * 40,
        "train " + "${a:-" * 200 + "}" * 200,
    ],
)
def test_what_expands_or_nests_too_far_is_refused(text):
    with pytest.raises(ShellTextError, match=r"at most|more than"):
        read(text)


@table(
    "text",
    [
        "'",
        '"',
        "`",
        "$(",
        "${",
        "$((",
        "a=(",
        "<<",
        "<<E",
        "case",
        "fi",
        "}",
        "$",
        "\\",
        ")",
        "for",
        "a[",
        "&>",
        "${a[@",
        "$'",
    ],
)
def test_broken_text_is_read_to_its_end(text):
    for whole in (text, f"train {text}", f"{text} x\ntrain", text * 500):
        read(whole)


def test_the_patterns_of_a_case_are_no_commands():
    text = 'case "$1" in\n  -m | --model ) M=x; shift ;;\n  --data) D=y ;;\nesac\ntrain --a 1'
    assert [command.words[0] for command in read(text).commands] == ["shift", "train"]


def test_an_unknown_part_of_a_variable_leaves_the_rest_known():
    text = 'A=" --lr $LR --bs 4 "\nif [ "$N" -ge 2 ]; then A+=" --rank $R "; fi\nC="train $A --x ${A##* }"\n$C --seed 1'
    found = words(text)
    assert found[:5] == ["train", "--lr", "$LR", "--bs", "4"]
    assert [isinstance(word, Unresolved) for word in found[:5]] == [False, False, True, False, False]
    assert found[-2:] == ["--seed", "1"]


def test_marks_of_unknown_parts_in_a_text_are_none():
    assert words("train \ue0000\ue001 --a") == ["train", "0", "--a"]
