"""What `make install` shows while pip works."""

from scripts.install import progress


def test_every_package_and_the_size_of_a_download_are_shown() -> None:
    lines = [
        "Looking in links: /somewhere",
        "Collecting numpy==2.1.0 (from -r requirements.lock (line 1))",
        "  Downloading numpy-2.1.0-cp311-cp311-manylinux_2_17_x86_64.whl (16.3 MB)",
        "Collecting click==8.1.0 (from -r requirements.lock (line 9))",
        "  Using cached click-8.1.0-py3-none-any.whl (98 kB)",
        "Installing collected packages: numpy, click",
        "Successfully installed click-8.1.0 numpy-2.1.0",
    ]
    assert list(progress(lines, 3)) == [
        "1 of 3  numpy",
        "1 of 3  numpy  (16.3 MB)",
        "2 of 3  click",
        "unpacking 2 packages",
    ]
