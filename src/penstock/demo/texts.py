"""What the samples say beside the stations' own pages."""

PREFACE = (
    "A handbook is read at night, by one person, while something makes a noise. It has been written for that person. "
    "Figures come before explanations, and explanations before history; what is only of interest is left out, unless "
    "it is short or makes the reader smile.",
    "Every station has the same eight sections in the same order, one page each, so that a hand that has opened the "
    "book at the right chapter finds the gates on the fourth page without looking. What a station does not have is "
    "not skipped but said to be missing.",
    "Each figure was measured and somebody has put a name to it. Where two figures differ, the newer one counts, and "
    "where the machine differs from the book, the machine is right and the book is to be corrected, with a pencil, at "
    "once, by whoever has found it.",
    "Nothing here replaces a telephone call. The numbers stand on the first page of each chapter.",
)

READING = (
    "The first section of a chapter says what the station is and who is there. The second follows the water through "
    "the rack, the third down the pipe. Then come the two things that can stop it, gates and valve, and the machine "
    "that it is all for. The seventh section is about the moment when the water is not wanted any more. The eighth is "
    "about what has gone wrong so far.",
    "Under the heading On the round stands what one does, in this order, whenever one comes by. A round is done with "
    "hands, ears and nose; a screen is looked at before and afterwards.",
    "Lengths are in metres and small ones in millimetres, pressures in bar, and a litre a second is a litre a second. "
    "A date is that of the last time, not of the next.",
    "Tables give readings of the last full year. A reading is no limit: limits are in the text, with the word alarm "
    "or the word trip beside them.",
)

UNITS = (
    ("Sign", "Means", "For example"),
    ("m", "metre", "the head of a station"),
    ("mm", "millimetre", "the wall of a pipe"),
    ("m³/s", "cubic metre a second", "the flow of a turbine"),
    ("l/min", "litre a minute", "a leak"),
    ("bar", "ten metres of water, nearly", "the pressure in the pipe"),
    ("MW", "megawatt", "what a unit delivers now"),
    ("GWh", "gigawatt hour", "what a station delivers in a year"),
    ("kN", "kilonewton", "the pull of a hoist"),
    ("mm/s", "millimetre a second", "how a bearing trembles"),
    ("°C", "degree", "oil, water, steel"),
)

GLOSSARY = (
    ("Abutment", "Where the dam meets the hill. The hill carries more than half of it and is thanked by drains."),
    (
        "Air valve",
        "Lets air out of a pipe that is filled and into a pipe that is emptied. Never painted over.",
    ),
    ("Anchor block", "Concrete that holds the pipe where it bends. It moves a little, and how much is written down."),
    ("Boom", "Timbers on a chain before the intake, for what floats. Checked after every storm."),
    ("By-pass", "The small way round a closed gate or valve, through which the large one is relieved before it opens."),
    ("Draft tube", "The flaring pipe under the turbine that gives back some of the speed of the water."),
    (
        "Expansion joint",
        "A sleeve that lets the pipe grow in the sun. Well, it drips; ill, it pours.",
    ),
    ("Gantry", "The crane over the gates. It has the right of way."),
    ("Governor", "Holds the speed by opening and closing the turbine. It is right more often than people are."),
    ("Head", "How far the water falls, in metres: the one figure from which all others follow."),
    ("Headrace", "The canal or tunnel from the reservoir to the penstock, almost level."),
    ("Log", "What happened, at what time, told by the one who was there."),
    (
        "Penstock",
        "The gated pipe between reservoir and turbine: what goes in is kept, what comes out is measured.",
    ),
    ("Pitting", "Small holes that bursting bubbles eat into the runner."),
    ("Rake", "The comb that cleans the rack."),
    ("Relief valve", "Opens when the pressure rises too far. It has a counter, and the counter is believed."),
    ("Residual flow", "The water that belongs to the river, whatever the price of electricity is."),
    ("Runner", "The part of the turbine that turns."),
    ("Saddle", "What the pipe lies on between two anchor blocks."),
    ("Spiral case", "The snail around the turbine, through which the water comes in evenly from all sides."),
    ("Surge tank", "A tower open at the top, where the water may climb when it is suddenly not wanted."),
    ("Tail water", "The river below the station, which never knows that anything happened."),
    ("Trash rack", "Bars before the intake, and the only part of the station that sees the whole valley pass by."),
    ("Trip", "A stop that the machine decides on by itself. It is thanked first and investigated afterwards."),
    ("Water hammer", "The blow of a column of water that was stopped too fast."),
)

INSPECTION = (
    ("Summary", (
        "The penstock of Glasmere was drained and walked on two days in June. It may run for another six years. Three "
        "findings have to be mended before the winter, and one may be watched.",
        "The most urgent finding is a crack of 34 millimetres beside the manhole of saddle 21. It was drilled at both "
        "ends on the spot, so that it goes no further, and is to be welded by a person with a certificate.",
    )),
    ("What was looked at", (
        "All saddles, both expansion joints, the manholes, and the coating from the bottom of the pipe up to the "
        "height of a raised hand. The crown was photographed from a trolley, one frame for each metre.",
        "The wall was measured at 212 points. The mean loss since the last time is 0.3 millimetres, which is less "
        "than was expected and is put down to the softer water since the quarry closed.",
    )),
    ("Findings", (
        "Finding 1: the crack beside the manhole. Finding 2: the lower expansion joint has lost two of its forty "
        "bolts; they were found in the drain. Finding 3: a root has come through the seal of the upper manhole, and "
        "it is the root of an ash tree that stands eleven metres away.",
        "Finding 4, to be watched: saddle 9 has sunk by 6 millimetres. It sank by 5 in the ten years before.",
    )),
    ("What is proposed", (
        "Weld the crack in August, when the level is low. Replace all forty bolts and not two. Cut the root, spare "
        "the tree, and lay a sheet of copper between them. Read the dial of saddle 9 on the first of each month.",
        "The cost is put at eleven days and the wages of four people, of whom one has to be slim.",
    )),
)  # fmt: skip

OUTAGE = (
    ("When and why", (
        "Halvorsdal stands still from 9 September for nineteen days. The seals of the service gate are changed, the "
        "runner of unit 2 is welded, and the brass bell is polished, since everybody will be there.",
        "The date was chosen by the river: in those weeks it carries the least water of the year, and the salmon have "
        "not come yet. If they come early, the outage ends early.",
    )),
    ("How", (
        "The guard gate is lowered on the first morning. Nobody enters the pipe before the meter has hung in it for "
        "an hour and two people have read it. The key of the guard gate stays in the pocket of the last person "
        "inside.",
        "Welding is done at night, because the hall is cooler then and the cook likes the company.",
    )),
)  # fmt: skip

BRING = (
    "Boots with felt soles: the pipe is slippery, and hobnails make sparks.",
    "Two lamps each, one of them on a string around the neck.",
    "A thermos. The canteen is on the other side of the river.",
    "Your own wrench of thirty-two millimetres.",
)

CREW = (
    ("Work", "Who", "Days"),
    ("Guard gate and drainage", "Lind, Sato", "1 to 2"),
    ("Seals of the service gate", "Oduya with four fitters", "3 to 12"),
    ("Runner of unit 2", "Moreau", "3 to 16"),
    ("Coating, touching up", "Brandt", "10 to 15"),
    ("Filling, tests, bell", "everybody", "17 to 19"),
)

FLOOD_MARKS = (
    ("Upper Tarn at Kestrel Rock", 180, 240),
    ("Linde at the lime trees", 95, 130),
    ("Raven above the sluice", 210, 275),
    ("Pike at the eel pass", 140, 190),
)

REMARKS = (
    "Quiet.",
    "Rake made two passes, mostly leaves.",
    "Unit 1 to full load at the request of the dispatcher, back after an hour.",
    "Tested the siren telephone; the other end was surprised.",
    "Oil pump of the inlet valve ran four times, as it should.",
    "Fog until noon. The gauge was read from the boat.",
    "Two visitors, one dog. The dog stayed outside and objected.",
)

FIELD_NOTES = """# Field notes

Written on walks, copied in the evening. Nothing in here is a rule.

## Birds

When the heron stands on the weir, the water is about to fall: it comes for what is left in the pools. The gate is then
opened a turn less than the table says, and in eleven years this has never been wrong.

The dippers nest behind the by-pass. They do not mind the noise and they do mind people, so the by-pass is read with a
telescope until the middle of June.

## Sounds

A penstock that is filled hums low. A penstock that is being filled gurgles from above to below, and the gurgle takes
as long as it takes to eat an apple. If you finish the apple first, look for the air valve that did not open.

## Stones

The round stone in the stilling basin of Pikewater has moved four metres since 1971. It weighs as much as a small car.
It moves in spring, at night, and nobody has seen it.
"""

ADDED = """
## Boats

The old boat at the upper landing was given to the school. The new one is vermilion, so that it can be seen from the
road, carries three, and has its own rope: seventeen metres, with a float at the end.
"""

WATER_RIGHTS = """# Water rights on the Orrin

| Holder | Since | May take | When |
|---|---|---|---|
| The mill at Orrin Bridge | 1786 | 120 l/s | by day |
| The parish meadow | 1811 | 45 l/s | April to June |
| Orrindale station | 1959 | what is left | always |

## The mill

The mill has not turned since 1952, and its right has not lapsed, because the miller's family opens the sluice for one
hour on every second of May and has a notary watch.

## The meadow

The parish waters its meadow by a channel whose mouth is exactly two spans wide. The span is cut into the church door.

## The station

Orrindale takes what the others leave. In a dry June this is less than one unit needs, and the duty to the river comes
before the station and after the meadow.
"""
