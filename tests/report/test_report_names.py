"""Names of strangers in pictures and tables: drawn as they are, and no formula or
broken XML.
"""

import xml.etree.ElementTree as xml

import pandas as pd
from matplotlib.figure import Figure

from simfed.report import save_picture
from simfed.report.export import write_table
from simfed.report.style import make_label


def test_a_picture_with_control_characters_is_xml_and_ticks_stay_formulas(tmp_path):
    axes = Figure().subplots()
    axes.set_title("a\x1b[2J\x01b")
    axes.loglog([1, 1000], [1, 1000])
    axes.set_yticks([1, 10], ["x\x0b", "$a$ and \\mu$"])
    path = save_picture(axes.figure, tmp_path / "a.svg")
    xml.parse(path)
    assert "mathdefault{10" in path.read_text()


def test_a_name_with_an_underscore_stands_in_the_legend():
    axes = Figure().subplots()
    axes.plot([0, 1], [0, 1], label=make_label("_hidden"))
    axes.plot([0, 1], [1, 0], label=make_label("shown"))
    texts = [text.get_text().strip() for text in axes.legend().get_texts()]
    assert texts == ["_hidden", "shown"]


def test_texts_of_an_exported_table_are_no_formulas(tmp_path):
    table = pd.DataFrame({
        "run": ["=1+1", "@x", "-a", "+b", "top-k"],
        "value": [-1.5, 2.0, float("nan"), 3.0, -4.0],
        "=head": pd.Categorical(["a", "-b", "a", "a", "a"]),
        "n": pd.array([1, None, -3, 4, 5]),
    })  # fmt: skip
    write_table(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == (
        "run,value,'=head,n\n'=1+1,-1.5,a,1\n'@x,2.0,'-b,\n'-a,,a,-3\n"
        "'+b,3.0,a,4\ntop-k,-4.0,a,5\n"
    )
