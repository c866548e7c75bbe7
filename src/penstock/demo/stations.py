"""Twenty-four power stations that do not exist, and figures for them: made up, but always the same."""

import hashlib
from dataclasses import dataclass

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


@dataclass(frozen=True)
class Station:
    name: str
    river: str
    built: int
    tale: str
    """What people tell of it, and of no other."""

    def number(self, what: str, low: int, high: int, step: int = 1) -> int:
        """A figure between low and high that depends on nothing but the station and what it is about."""
        digest = hashlib.sha256(f"{self.name}/{what}".encode()).digest()
        return low + int.from_bytes(digest[:6], "big") % ((high - low) // step + 1) * step

    def decimal(self, what: str, low: int, high: int) -> str:
        """The same with one decimal place; low and high are in tenths."""
        return f"{self.number(what, low, high) / 10:.1f}"

    def pick(self, what: str, *options: str) -> str:
        return options[self.number(what, 0, len(options) - 1)]

    def date(self, what: str, low: int, high: int) -> str:
        day, month = self.number(f"{what}.day", 1, 28), self.pick(f"{what}.month", *MONTHS)
        return f"{day} {month} {self.number(what, low, high)}"

    @property
    def head(self) -> int:
        """Metres of falling water."""
        return self.number("head", 38, 412)


STATIONS = (
    Station(
        "Aldermoor",
        "Alder",
        1923,
        "In its first winter the night watch kept warm by reading the log aloud to the governor, and the log of that "
        "winter is the only one without a single blank hour.",
    ),
    Station(
        "Birchfall",
        "Lower Birch",
        1931,
        "A drifting piano once lay across the trash rack here for two days. It was lifted out with the rack rake, "
        "dried, and stands in the canteen, where it is tuned every other spring.",
    ),
    Station(
        "Corrie Weir",
        "Corrie",
        1908,
        "The oldest gate of the company still hangs here. Its wheels run on greased beech, and nobody has found a "
        "reason to replace them.",
    ),
    Station(
        "Dunmarrow",
        "Marrow",
        1954,
        "The control room was built one step too low, so that every visitor stumbles at the door. The step is painted "
        "yellow each year, and each year somebody stumbles.",
    ),
    Station(
        "Eskelund",
        "Eskel",
        1962,
        "A colony of sand martins nests in the north abutment. No concrete is poured there between April and August, "
        "which is written into the outage plan.",
    ),
    Station(
        "Fernhollow",
        "Fern Water",
        1937,
        "Fern spores grow in the drainage gallery by the light of one lamp. The lamp is left burning on purpose, and "
        "the gallery is the greenest tunnel of the company.",
    ),
    Station(
        "Glasmere",
        "Glas",
        1949,
        "The tail water is so clear that the number painted on the draft tube can be read from the road bridge, forty "
        "metres above.",
    ),
    Station(
        "Halvorsdal",
        "Halvor",
        1918,
        "A brass bell from a river barge hangs in the machine hall. It is rung when a unit comes back after an "
        "overhaul, and at no other time.",
    ),
    Station(
        "Inverlorn",
        "Lorn",
        1957,
        "During the great storm the crew of Inverlorn ran the station for three days by candlelight, because the "
        "lighting circuit was the only thing that had failed.",
    ),
    Station(
        "Juniper Gorge",
        "Juniper",
        1966,
        "The access road has forty-one bends, each with the name of a foreman. Bend 17 carries two names, since "
        "neither would give way.",
    ),
    Station(
        "Kestrel Rock",
        "Upper Tarn",
        1971,
        "Kestrels have taken the gantry crane for a cliff. The crane moves only after somebody has looked, and the "
        "look is a line in the checklist.",
    ),
    Station(
        "Lindenau",
        "Linde",
        1928,
        "The lime trees along the headrace were planted so that their roots would hold the bank. They do, and their "
        "leaves block the fine screen every October.",
    ),
    Station(
        "Marrowstone",
        "Stone Marrow",
        1944,
        "The penstock crosses under a farmyard. By an old agreement the farmer is given a new gate whenever the "
        "company gets one.",
    ),
    Station(
        "Nettlebeck",
        "Nettle Beck",
        1933,
        "The smallest station has the largest visitors' book: a ferry captain signed it every week for twenty-six "
        "years.",
    ),
    Station(
        "Orrindale",
        "Orrin",
        1959,
        "Its surge tank hums the note of A flat when the load is thrown off. A choir has tuned to it once, during an "
        "open day.",
    ),
    Station(
        "Pikewater",
        "Pike",
        1926,
        "An eel as long as a man lives in the tailrace and has been counted in nine inspections. The eel pass was "
        "widened on its account.",
    ),
    Station(
        "Quarrybank",
        "Quarry Burn",
        1940,
        "The stone of the dam came from the hole in which the powerhouse stands, so that nothing had to be carried "
        "further than a loud voice reaches.",
    ),
    Station(
        "Ravensluice",
        "Raven",
        1952,
        "The sluice keeper's house has a door on the river side that opens on nothing. It was meant for a footbridge "
        "that was never built.",
    ),
    Station(
        "Silverthwaite",
        "Silver",
        1964,
        "A clock that runs on the station's own water shows the time in the hall. It loses two minutes in a dry "
        "summer.",
    ),
    Station(
        "Tarnhead",
        "Tarn",
        1947,
        "The highest station is reached by a rope railway. Goats use the lower station of it as a shelter and have "
        "learnt the timetable.",
    ),
    Station(
        "Upper Wick",
        "Wick",
        1935,
        "The first woman to run a turbine of the company did so here, for thirty-four years, and wrote the starting "
        "procedure that all stations still use.",
    ),
    Station(
        "Vellmar",
        "Vell",
        1969,
        "A skating rink is flooded with cooling water each January. The temperature of the rink is, against all "
        "advice, an entry on the control desk.",
    ),
    Station(
        "Whinfell",
        "Whin",
        1951,
        "The gorse on the slope was burnt off by mistake in a test of the sirens, and came back thicker. The sirens "
        "were moved.",
    ),
    Station(
        "Yarrowgate",
        "Yarrow",
        1975,
        "The last station to be built was the first to be run from afar. Its control room has one chair, which nobody "
        "has ever worn out.",
    ),
)
