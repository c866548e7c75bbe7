"""The text of a handbook: eight sections for each station, each of them one page, with figures of its own."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.demo.stations import MONTHS, Station

TITLE = "The Penstock Operator's Handbook"


FINDINGS = (
    "the handrail on the third landing is loose",
    "two labels have faded and one is on the wrong pipe",
    "the lamp over the stairs flickers when the crane moves",
    "somebody has oiled what should be dry",
    "the spare fuses lie in the drawer for the spare bulbs",
    "the door closes by itself, which it should not",
    "a bucket stands where a drain ought to be",
    "the gauge glass needs a brush and patience",
    "the tool board lacks the wrench of thirty-two millimetres",
    "frost has lifted a slab beside the path",
    "the drawing in the cabinet is older than the cabinet",
    "the sound is good and the smell is good",
    "a swallow has built on the cable tray, and the tray is closed until August",
    "the bolts are tight, and one of them is missing",
    "the paint is wet and the sign that says so is not",
    "the valve turns easily and shows the wrong way",
    "the ladder was moved to the far wall, and so is moved back each morning",
    "the clock is right, the calendar beside it is of last year",
)


class Section(NamedTuple):
    title: str
    paragraphs: Sequence[str]
    steps: Sequence[str]
    """What a round of inspection does, in order."""
    caption: str
    table: Sequence[Sequence[str]]
    """Its first row names the columns."""
    monthly: Sequence[Sequence[str]]
    """Readings of a year; its first row names the columns."""


def sections(station: Station) -> list[Section]:
    made = [make(station) for make in MAKERS]
    return [section._replace(paragraphs=(*section.paragraphs, _notes(station, section.title))) for section in made]


def _notes(s: Station, title: str) -> str:
    """What an inspector saw: three of many things, so that no two pages end alike."""
    by = s.pick(f"{title}.by", "E. Brandt", "M. Oduya", "K. Lind", "R. Sato", "T. Moreau", "A. Whelan")
    start = s.number(f"{title}.first", 0, len(FINDINGS) - 1)
    stride = s.number(f"{title}.stride", 1, len(FINDINGS) // 3)
    findings = "; ".join(FINDINGS[(start + i * stride) % len(FINDINGS)] for i in range(3))
    return f"{by} looked at {s.name} on {s.date(title, 2019, 2023)} and noted: {findings}. All of it is done by now."


def _monthly(s: Station, *columns: tuple[str, int, int]) -> Sequence[Sequence[str]]:
    """Each column is a quantity with its lowest and highest reading, in tenths."""
    rows = [["Month", *(name for name, _, _ in columns)]]
    return rows + [
        [month, *(s.decimal(f"{month}.{name}", low, high) for name, low, high in columns)] for month in MONTHS
    ]


def _station(s: Station) -> Section:
    units = s.number("units", 2, 5)
    power = s.decimal("power", 42, 980)
    paragraphs = (
        f"{s.name} stands on the {s.river} and has made electricity since {s.built}. It uses a fall of {s.head} metres "
        f"and holds {units} units with {power} megawatts in all. In a year of average rain it delivers "
        f"{s.number('energy', 18, 390)} gigawatt hours, most of them between {s.pick('wet', 'March', 'April', 'May')} "
        f"and {s.pick('wet.end', 'July', 'August', 'September')}.",
        f"The reservoir above it holds {s.decimal('volume', 11, 460)} million cubic metres between the lowest and the "
        f"highest level, which lies {s.number('level', 210, 1890)} metres above the sea. The dam is a "
        f"{s.pick('dam', 'gravity dam of rubble masonry', 'thin arch of concrete', 'rockfill dam with a clay core')}, "
        f"{s.number('dam.height', 14, 96)} metres high and {s.number('dam.length', 88, 540)} metres long at its crest. "
        f"It is walked along once a week and surveyed every {s.number('survey', 2, 5)} years.",
        s.tale,
        f"A shift at {s.name} is {s.number('crew', 2, 7)} people by day and {s.pick('night', 'one', 'two')} by night. "
        f"The telephone of the control desk is {s.number('phone', 2100, 2999)}; the valve house answers on "
        f"{s.number('phone.valve', 3100, 3999)}. Anybody who enters the pipe gallery hangs a tag on the board beside "
        "the door, whatever the errand, and takes it off again in person.",
        f"Whoever takes over reads the last {s.number('log', 24, 72, 12)} hours of the log before touching anything. "
        f"{s.pick('habit', 'Then both shifts walk to the valve house together', 'Then the alarms are tested by ear')}. "
        f"A hand-over takes {s.number('handover', 10, 30, 5)} minutes and is never shortened, not even for a train. "
        "What is unclear stays with the shift that leaves until it is clear.",
        "In an emergency the assembly point is "
        f"{s.pick('point', 'the car park by the weir', 'the lawn by the gauge')}. The siren can be heard "
        f"{s.decimal('siren', 12, 58)} kilometres down the valley of the {s.river}, and it is tested on the first "
        f"{s.pick('siren.day', 'Monday', 'Wednesday', 'Saturday')} of each quarter, at noon.",
    )
    steps = (
        f"Read the level of the {s.river} at the staff, not on the screen, and write both down.",
        f"Walk from the intake to the tail water. The round of {s.name} is {s.number('round', 900, 4200, 50)} metres.",
        f"Count the tags on the board: as many as people are inside. {s.name} has {s.number('tags', 12, 40)} hooks.",
        "Listen for a minute at each machine with the door shut. What has changed since yesterday is written down.",
        f"Try lamp and telephone of the valve house; the spare lamp hangs on hook {s.number('hook', 1, 12)}.",
    )
    table = [["Unit", "In service", "Megawatts", "Last overhaul", "Hours since"]]
    for unit in range(1, 6):
        key = f"unit{unit}"
        table.append([
            f"{s.name} {unit}", str(s.built + s.number(key, 0, 9)), s.decimal(f"{key}.mw", 12, 245),
            str(s.number(f"{key}.overhaul", 2009, 2023)), f"{s.number(f'{key}.hours', 1200, 48900):,}",
        ])  # fmt: skip
    monthly = _monthly(s, ("Level (m)", 20, 190), ("Rain (mm)", 120, 2400), ("Delivered (GWh)", 8, 420))
    return Section("The station", paragraphs, steps, f"Units of {s.name}, planned ones included", table, monthly)


def _intake(s: Station) -> Section:
    bars = s.number("rack.bars", 64, 320, 4)
    gap = s.number("rack.gap", 18, 95)
    paragraphs = (
        f"Water of the {s.river} enters {s.name} through {s.pick('bays', 'two', 'three', 'four')} bays, each "
        f"{s.decimal('bay', 24, 78)} metres wide. The sill lies {s.decimal('sill', 31, 142)} metres below the lowest "
        "level, deep enough that no air is drawn in. If a whirl shows on the surface all the same, the flow is cut by "
        "a tenth, and by another, until it is gone.",
        f"The trash rack of {s.name} has {bars} bars with {gap} millimetres between them. It was last replaced on "
        f"{s.date('rack.date', 1994, 2022)}, after {s.number('rack.age', 17, 61)} years in the water. The bars are "
        f"{s.pick('rack.steel', 'galvanised', 'stainless', 'plain painted')} steel and may lose a third of their "
        "thickness to rust before they count as worn.",
        f"A clean rack costs {s.number('rack.loss', 2, 9)} centimetres of head. At {s.number('rack.rake', 14, 30)} "
        f"centimetres the rake is started, at {s.number('rack.alarm', 45, 70)} the alarm comes, and at "
        f"{s.number('rack.trip', 90, 140)} the units are shut down, since the rack would not bear more. The rake makes "
        f"one pass in {s.number('rake.pass', 3, 12)} minutes and lifts at most {s.number('rake.load', 350, 1500, 50)} "
        "kilograms.",
        "What the rake brings up is sorted by hand: wood to the pile, weed to the compost, and the rest into a skip "
        f"that is weighed. In {s.number('skip.year', 2015, 2023)} the skip at {s.name} took "
        f"{s.decimal('skip', 18, 320)} tonnes, among it {s.number('skip.balls', 3, 140)} footballs. Living fish go "
        "into the basin beside the rake, and from there to the tail water, within the hour.",
        "Ice is the enemy of "
        f"{s.pick('ice.when', 'December nights', 'clear nights in January', 'the first cold week')}. When the water is "
        f"colder than {s.pick('ice.limit', '0.05', '0.08', '0.10')} degrees and the sky is clear, slush forms on the "
        f"bars within {s.number('ice.time', 20, 90, 5)} minutes. Then the load is held steady, the "
        f"{s.pick('ice.means', 'air bubbler', 'heated bar', 'hot water lance')} is switched on, and somebody watches "
        "the rack until the morning.",
    )
    steps = (
        f"Compare the gauges before and behind the rack; more than {s.number('step.loss', 10, 28)} centimetres: rake.",
        f"Turn the rake by hand once. Its chain has {s.number('chain', 80, 260, 2)} links and link 1 is painted red.",
        "Look at the boom, and pull in what leans on it before it slips under.",
        f"Open the basin for fish. It is emptied before {s.number('fish', 6, 10)} in the morning, also on Sundays.",
        f"Weigh the skip. At {s.number('skip.full', 700, 2400, 100)} kilograms it is full, whatever room is left.",
    )
    table = [["Bay", "Gauge reads (m)", "Loss (cm)", "Rake passes a week", "Diver's visit"]]
    for bay in range(1, 5):
        key = f"bay{bay}"
        table.append([
            f"{s.name} bay {bay}", s.decimal(f"{key}.gauge", 40, 190), str(s.number(f"{key}.loss", 2, 29)),
            str(s.number(f"{key}.passes", 3, 168)), s.date(f"{key}.diver", 2018, 2023),
        ])  # fmt: skip
    monthly = _monthly(s, ("Loss at the rack (cm)", 20, 290), ("Raked out (t)", 1, 96), ("Water (°C)", 4, 188))
    return Section("Intake and trash rack", paragraphs, steps, "The bays, as last measured", table, monthly)


def _pipe(s: Station) -> Section:
    wall = s.number("wall", 11, 46)
    paragraphs = (
        f"The penstock of {s.name} is {s.number('length', 140, 2350, 5)} metres long and "
        f"{s.decimal('diameter', 12, 52)} metres wide. Its wall is {wall} millimetres thick at the lower end, where "
        f"the pressure is highest, and {max(8, wall // 2)} at the upper. At full load the water runs at "
        f"{s.decimal('speed', 28, 71)} metres a second, and a drop needs {s.number('transit', 40, 620)} seconds from "
        "the gate to the turbine.",
        f"The pipe rests on {s.number('saddles', 12, 210)} saddles and is held by {s.number('anchors', 3, 16)} anchor "
        f"blocks. Between two blocks an expansion joint lets it grow: on a hot day {s.name} has measured "
        f"{s.number('growth', 14, 88)} millimetres. The packing of the joints is "
        f"{s.pick('packing', 'braided flax', 'graphite cord', 'rubber profile')} and is tightened when it drips faster "
        f"than {s.number('drips', 10, 60, 5)} drops a minute.",
        f"Thickness is measured with ultrasound every {s.number('ut', 3, 8)} years at "
        f"{s.number('ut.points', 48, 640, 8)} marked points. In {s.number('ut.year', 2012, 2023)} the thinnest point "
        f"of {s.name} was at saddle {s.number('ut.saddle', 2, 12)}, with {s.decimal('ut.thin', 68, 108)} millimetres "
        f"left. The pipe is lowered in pressure when a point falls under {s.decimal('ut.limit', 52, 66)} millimetres, "
        "and patched in the next outage.",
        f"The coating inside is {s.pick('coat', 'coal-tar epoxy', 'glass-flake epoxy', 'red lead under bitumen')} of "
        f"{s.date('coat.date', 1988, 2021)}. Blisters smaller than a hand are left alone. To walk the pipe it is "
        f"drained at {s.number('drain', 80, 400, 10)} litres a second, which takes {s.number('drain.hours', 2, 19)} "
        "hours, and aired until the meter shows twenty point nine per cent of oxygen at both ends.",
        f"Filling is slower than draining. The by-pass of {s.name} lets in {s.number('fill', 20, 160, 5)} litres a "
        f"second and the filling takes {s.number('fill.hours', 5, 31)} hours. All air valves are watched: "
        f"{s.number('air', 2, 9)} of them stand along the line, and each has to hiss, then spit, then close. An air "
        "valve that stays silent stops the filling.",
    )
    steps = (
        f"Walk the line downhill, with the pipe on the left; {s.name} has a handrail on that side only.",
        "Lay a hand on each expansion joint: it may be wet, it must not be warm.",
        f"Read the dial at anchor block {s.number('dial', 2, 5)} and compare it with last month's reading.",
        "Look for fresh green along the trench. Grass finds a leak before any instrument does.",
        f"Shut the gallery door behind you; its draught has frozen the drain {s.number('frozen', 2, 6)} times.",
    )
    table = [["Anchor block", "Distance (m)", "Moved since built (mm)", "Wall beside it (mm)", "Surveyed"]]
    for block in range(1, 6):
        key = f"block{block}"
        table.append([
            f"{s.name} A{block}", str(s.number(key, 20, 120) + 130 * block), s.decimal(f"{key}.moved", 0, 64),
            str(s.number(f"{key}.wall", 9, 46)), s.date(f"{key}.survey", 2017, 2023),
        ])  # fmt: skip
    monthly = _monthly(s, ("Pressure (bar)", 40, 420), ("Seepage (l/min)", 1, 74), ("Steel (°C)", 10, 310))
    return Section("The penstock", paragraphs, steps, "Anchor blocks", table, monthly)


def _gates(s: Station) -> Section:
    paragraphs = (
        f"Two gates stand at the head of the line of {s.name}. The service gate is a "
        f"{s.pick('gate', 'fixed-wheel gate', 'sliding gate', 'radial gate')} of {s.number('gate.mass', 4, 58)} "
        f"tonnes, made in {s.built + s.number('gate.made', 0, 30)}; the guard gate before it is lowered into still "
        "water only. Neither is ever used to regulate: a gate is open or it is shut.",
        f"The service gate of {s.name} closes by its own weight in {s.number('gate.close', 35, 190)} seconds, against "
        "full flow, without electricity and without anybody's help. That is the most important sentence of this page. "
        f"It is tried every year, in {s.pick('gate.month', 'May', 'June', 'September', 'October')}, with the turbine "
        f"at {s.number('gate.load', 25, 100, 25)} per cent of its load.",
        f"Opening takes {s.number('gate.open', 4, 22)} minutes with the "
        f"{s.pick('hoist', 'hydraulic cylinder', 'chain hoist', 'screw spindles')}. First it is cracked by "
        f"{s.number('gate.crack', 40, 150, 10)} millimetres until the pressure on both sides is equal. The hoist pulls "
        f"{s.number('gate.pull', 90, 640, 10)} kilonewtons at the most; if it needs more, something lies in the slot, "
        "and the rule is to lower, not to pull.",
        f"The seals are {s.pick('seal', 'music-note rubber', 'bronze on stainless steel', 'larch wood')} and let "
        f"through {s.decimal('leak', 3, 118)} litres a minute when they are good. At five times that they are changed. "
        f"The last set at {s.name} went in on {s.date('seal.date', 2003, 2022)} and cost "
        f"{s.number('seal.days', 3, 16)} days of outage, of which {s.number('seal.wait', 1, 3)} went by waiting for a "
        "rubber of the right hardness.",
        f"The limit switches are numbered from below. Switch {s.number('switch', 2, 6)} is the one that sticks; a tap "
        "with a wooden mallet frees it, and a metal one breaks it. The position transmitter was calibrated on "
        f"{s.date('switch.date', 2016, 2023)} and read {s.number('switch.off', 1, 19)} millimetres too much. Grease "
        f"goes on the wheels every {s.number('grease', 4, 26)} weeks and on the guides never, since it gathers sand.",
    )
    steps = (
        f"Read the oil of the hoist: between the marks, which at {s.name} are {s.number('marks', 40, 110, 5)} mm "
        "apart.",
        "Look into the slot with the lamp. What floats there is fished out before the gate moves.",
        f"Lower the service gate by {s.number('step.lower', 50, 200, 10)} millimetres and lift it again.",
        "Write down the pull of the hoist; a rise of a tenth from one month to the next is a finding.",
        f"Lock the panel. The key of {s.name} is number {s.number('key', 101, 399)} and hangs in the control room.",
    )
    table = [["Gate", "Size (m)", "Closing (s)", "Leak (l/min)", "Tested"]]
    for gate in ("guard", "service", "by-pass", "sluice"):
        size = f"{s.decimal(gate + '.w', 12, 62)} × {s.decimal(gate + '.h', 14, 74)}"
        table.append([
            f"{s.name} {gate}", size, str(s.number(f"{gate}.close", 18, 240)), s.decimal(f"{gate}.leak", 2, 160),
            s.date(f"{gate}.test", 2019, 2023),
        ])  # fmt: skip
    monthly = _monthly(s, ("Pull of the hoist (kN)", 620, 4900), ("Leak (l/min)", 3, 118), ("Oil (°C)", 60, 380))
    return Section("Gates", paragraphs, steps, "Gates and their last test", table, monthly)


def _valve(s: Station) -> Section:
    kind = s.pick("valve", "spherical valve", "butterfly valve", "double-disc butterfly valve")
    paragraphs = (
        f"The main inlet valve of {s.name} is a {kind} of {s.decimal('valve.bore', 10, 38)} metres bore. It stands "
        f"{s.decimal('valve.before', 21, 96)} metres before the spiral case and is rated for "
        f"{s.number('valve.bar', 6, 64)} bar. It opens with oil at {s.number('valve.oil', 30, 160, 5)} bar and closes "
        f"with a counterweight of {s.number('valve.weight', 2, 19)} tonnes, so that a lost pump can only ever close "
        "it.",
        f"A normal closure takes {s.number('valve.close', 30, 120, 5)} seconds and an emergency closure "
        f"{s.number('valve.trip', 12, 28)}. Both times are set by an orifice, not by a program, and the orifice of "
        f"{s.name} has a bore of {s.decimal('valve.orifice', 21, 88)} millimetres. It is sealed with lead. Who finds "
        "the seal broken tells the engineer before the next start, at any hour.",
        f"The valve trips by itself when the unit runs faster than {s.number('valve.over', 118, 145)} per cent, when "
        f"the difference of flow between its two ends exceeds {s.number('valve.diff', 4, 15)} per cent for "
        f"{s.number('valve.diff.time', 3, 12)} seconds, when the pit floods to {s.number('valve.flood', 15, 60, 5)} "
        f"centimetres, and when somebody strikes the red knob, of which there are {s.number('valve.knobs', 2, 6)}.",
        f"The oil is {s.pick('oil', 'mineral oil ISO 46', 'rapeseed ester', 'synthetic ester ISO 32')}. The tank holds "
        f"{s.number('oil.tank', 320, 2600, 20)} litres and the accumulators are charged with nitrogen to "
        f"{s.number('oil.nitrogen', 55, 125, 5)} bar. They have to bear {s.pick('oil.strokes', 'two', 'three')} "
        f"strokes without a pump. At the last test, on {s.date('oil.date', 2018, 2023)}, {s.name} managed "
        f"{s.decimal('oil.done', 21, 44)}.",
        f"The trunnion bearings take {s.number('bear.grease', 80, 900, 20)} grams of grease every "
        f"{s.number('bear.weeks', 4, 13)} weeks. A dry bearing groans before it seizes: it was heard at {s.name} in "
        f"{s.number('bear.year', 1979, 2016)}, during a school visit, and a pupil asked what the sound was. The pupil "
        f"was {s.pick('bear.after', 'given a medal', 'hired nine years later', 'invited to the next overhaul')}.",
    )
    steps = (
        f"Look at the lead seal of the orifice: whole, and stamped with the number {s.number('stamp', 1001, 9899)}.",
        "Listen to the oil pump. It runs seldom and briefly; a pump that runs often feeds a leak.",
        f"Drain the pit and wait {s.number('pit', 5, 40, 5)} minutes: what has gathered by then is the leak.",
        "Move the counterweight's lock and put it back. The lock is for work on the valve and for nothing else.",
        "Strike one red knob a month, in turn, at standstill. This month's is written on sheet "
        f"{s.number('sheet', 3, 19)}.",
    )
    table = [["Trip of the valve", "Limit", "Last tested", "Closed in (s)", "By"]]
    for trip, unit in (("overspeed", "%"), ("flow difference", "%"), ("pit level", "cm"), ("oil pressure", "bar")):
        limit = f"{s.number(f'trip.{trip}', 8, 60)} {unit}"
        table.append([
            f"{s.name}: {trip}", limit, s.date(f"{trip}.date", 2020, 2023), str(s.number(f"{trip}.s", 11, 34)),
            s.pick(f"{trip}.by", "E. Brandt", "M. Oduya", "K. Lind", "R. Sato"),
        ])  # fmt: skip
    monthly = _monthly(s, ("Oil pressure (bar)", 310, 1600), ("Pump starts a day", 10, 240), ("Leak (l/min)", 1, 66))
    return Section("The main inlet valve", paragraphs, steps, "Protection of the valve", table, monthly)


def _turbine(s: Station) -> Section:
    kind = "Pelton" if s.head > 260 else "Francis" if s.head > 70 else "Kaplan"
    paragraphs = (
        f"The turbines of {s.name} are {kind} machines, the right kind for a head of {s.head} metres. They turn at "
        f"{s.pick('rpm', '214', '250', '300', '333', '375', '428', '500', '600')} revolutions a minute and take "
        f"{s.decimal('flow', 14, 310)} cubic metres a second each at full load. Their best efficiency is "
        f"{s.decimal('eta', 884, 942)} per cent, at {s.number('eta.load', 68, 88)} per cent of the load.",
        f"Between {s.number('rough.low', 28, 38)} and {s.number('rough.high', 46, 58)} per cent of the load the "
        f"machines of {s.name} run rough: a rope of vapour turns in the draft tube. The band is crossed without "
        "stopping. Whoever is asked to hold a load within it says no, and writes down who asked. "
        f"{s.pick('rough.air', 'Air', 'No air')} is admitted to the draft tube.",
        f"The runner was last welded on {s.date('weld', 2005, 2022)}. Pitting took {s.decimal('weld.kg', 4, 164)} "
        f"kilograms of steel, nearly all of it from {s.pick('weld.where', 'the suction side', 'the outlet edges')}. "
        "The spare runner lies in "
        f"{s.pick('spare', 'bay six of the hall', 'the shed by the gate', 'a crate under the crane')} and has waited "
        f"there since {s.number('spare.year', 1968, 2009)}.",
        f"The thrust bearing carries {s.number('thrust', 48, 560)} tonnes on {s.number('pads', 6, 12)} pads. Its oil "
        f"may reach {s.number('bearing.alarm', 58, 68)} degrees before the alarm and "
        f"{s.number('bearing.trip', 70, 82)} before the trip. On a normal day at {s.name} it stands at "
        f"{s.number('bearing.day', 41, 54)}. A rise of two degrees in an hour, without a rise of the load, is a reason "
        "to telephone.",
        f"The generator makes {s.pick('volts', '6.3', '10.5', '13.8')} kilovolts. Its windings were renewed in "
        f"{s.number('winding', 1978, 2019)} and are dried with {s.number('heater', 4, 18)} kilowatts whenever it "
        f"stands still for more than {s.number('heater.hours', 6, 48, 6)} hours. Brushes are changed at "
        f"{s.number('brush', 14, 26)} millimetres. A start from standstill to the grid takes "
        f"{s.number('start', 95, 420, 5)} seconds, of which the synchroniser needs {s.number('sync', 12, 60)}.",
    )
    steps = (
        f"Read the four bearing temperatures. At {s.name} they differ by at most {s.number('differ', 3, 9)} degrees.",
        "Hold a coin on edge on the bearing cover; where it stands, the machine is well.",
        f"Look at the brushes through the hatch. Sparks are counted, and {s.number('sparks', 2, 9)} are one too many.",
        "Smell the air at the cooler outlet. Warm varnish is a reason to telephone at once.",
        f"Drain the air vessel until it stops spitting, about {s.number('spit', 8, 50)} seconds.",
    )
    table = [["Load (%)", "Flow (m³/s)", "Power (MW)", "Efficiency (%)", "Vibration (mm/s)"]]
    for load in (20, 40, 60, 80, 100):
        key = f"load{load}"
        table.append([
            f"{s.name} {load}", s.decimal(f"{key}.flow", load // 5, 3 * load), s.decimal(f"{key}.mw", load, 2 * load),
            s.decimal(f"{key}.eta", 720 + load, 842 + load), s.decimal(f"{key}.mms", 6, 58),
        ])  # fmt: skip
    monthly = _monthly(s, ("Bearing (°C)", 410, 560), ("Vibration (mm/s)", 6, 42), ("Running (h)", 900, 7200))
    return Section("Turbine and generator", paragraphs, steps, "Acceptance measurement of unit 1", table, monthly)


def _surge(s: Station) -> Section:
    paragraphs = (
        f"When the load of {s.name} is thrown off, the water in the pipe cannot stop at once. It rises in the surge "
        f"tank, which is {s.decimal('tank', 38, 190)} metres wide and {s.number('tank.height', 16, 88)} metres high "
        f"and stands {s.number('tank.at', 90, 1400, 10)} metres above the powerhouse along the line. The first rise "
        f"reaches {s.decimal('rise', 32, 240)} metres and comes after {s.number('rise.time', 34, 160)} seconds.",
        f"The level then swings with a period of {s.number('period', 80, 420)} seconds and has to be let swing. A new "
        f"load may be taken only at the {s.pick('swing', 'second', 'third')} upswing. In "
        f"{s.number('swing.year', 1961, 2004)} {s.name} loaded against the swing: the tank emptied, air went down the "
        f"line, and the gauge glass of unit {s.number('swing.unit', 1, 2)} was found in the next field.",
        f"The pressure wave itself is faster. It runs at {s.number('wave', 920, 1240, 10)} metres a second and is back "
        f"at the valve after {s.decimal('wave.back', 4, 41)} seconds. A closure that is slower than that makes the "
        f"pressure rise by {s.number('rise.percent', 9, 34)} per cent at {s.name}; a faster one might double it. All "
        "closing times of this chapter follow from that one figure.",
        f"The relief valve opens at {s.number('relief', 108, 128)} per cent of the normal pressure and lets out "
        f"{s.decimal('relief.flow', 6, 88)} cubic metres a second into the stilling basin. It has opened "
        f"{s.number('relief.count', 3, 61)} times since {s.number('relief.since', 1982, 2010)}. After each opening its "
        "seat is looked at with a lamp and its stroke counter is written into the log.",
        f"The tank is lined with {s.pick('lining', 'larch', 'steel plate', 'shotcrete', 'brick')} and was last emptied "
        f"on {s.date('lining.date', 1996, 2023)}. Its float is read in the control room, and a staff is painted on its "
        f"wall for the day when the float is wrong. The staff of {s.name} begins at {s.number('staff', 100, 480, 5)} "
        "centimetres, because somebody began to paint at eye level.",
    )
    steps = (
        f"Climb the tank by day and in pairs. The ladder of {s.name} has {s.number('rungs', 60, 290)} rungs.",
        "Compare the float with the painted staff; a hand's breadth is the most that is allowed.",
        "Look at the air vent: free of ice, of birds, and of the cap that is put on in "
        f"{s.pick('cap', 'May', 'June')}.",
        "Read the stroke counter of the relief valve and ask the log about each stroke.",
        f"Try the lamp on top; it is seen by aircraft and by {s.number('seen', 20, 180)} households.",
    )
    table = [["Load thrown off (%)", "Highest level (m)", "Pressure rise (%)", "Overspeed (%)", "Date of the test"]]
    for load in (25, 50, 75, 100):
        key = f"throw{load}"
        table.append([
            f"{s.name} {load}", s.decimal(f"{key}.level", load, 3 * load),
            str(s.number(f"{key}.rise", load // 10, load // 3)), str(s.number(f"{key}.over", load // 6, load // 2)),
            s.date(f"{key}.date", 2011, 2023),
        ])  # fmt: skip
    monthly = _monthly(s, ("Mean level (m)", 110, 620), ("Largest swing (m)", 4, 96), ("Load rejections", 0, 60))
    return Section("Surge tank and water hammer", paragraphs, steps, "Load rejection tests", table, monthly)


def _events(s: Station) -> Section:
    flood, drought = s.number("flood", 1958, 2021), s.number("drought", 1949, 2022)
    paragraphs = (
        f"The highest flood that {s.name} has seen came on {s.date('flood', 1958, 2021)}: the {s.river} carried "
        f"{s.number('flood.flow', 160, 2900, 10)} cubic metres a second, and the water stood "
        f"{s.number('flood.step', 2, 19)} steps up the outer stair. The mark of {flood} is cut into the wall. Since "
        f"then the pit pumps hang {s.decimal('pumps', 12, 38)} metres higher.",
        f"The driest summer was that of {drought}. For {s.number('dry.days', 19, 118)} days {s.name} ran one unit for "
        f"{s.number('dry.hours', 2, 9)} hours a day, and the residual flow of {s.number('residual', 80, 950, 10)} "
        "litres a second had to be let out through the by-pass, since the river comes first. The duty to the river "
        "stands above every contract of delivery.",
        f"On {s.date('trip', 2001, 2023)} the station tripped without a cause that anybody could name. After "
        f"{s.number('trip.hours', 5, 70)} hours it was found: {_cause(s)}. What was learnt is a line in the start "
        f"checklist, number {s.number('trip.line', 11, 58)}, and the line says where to look first.",
        f"The last big overhaul of {s.name} took {s.number('overhaul.weeks', 6, 31)} weeks in "
        f"{s.number('overhaul.year', 1999, 2022)} and employed {s.number('overhaul.people', 18, 140)} people. It came "
        f"{s.number('overhaul.late', 1, 24)} days late, because {_delay(s)}. The report runs to "
        f"{s.number('overhaul.pages', 90, 740)} pages, and this handbook holds what one needs of it at night.",
        f"The next outage is planned for {s.pick('next.month', *('March', 'April', 'September', 'October'))} "
        f"{s.number('next', 2025, 2031)}. Until then the list of small things has {s.number('small', 7, 66)} entries, "
        "and the shift that has an hour to spare takes the one at the top, not the one that it likes. The list hangs "
        f"in {s.pick('list', 'the workshop', 'the canteen', 'the corridor to the stairs')}.",
    )
    steps = (
        "When something has happened: first people, then water, then machines, then reports.",
        f"Call the desk on {s.number('desk', 2100, 2999)} and say where you stand before you say what you see.",
        "Leave everything as it lies until it has been photographed, unless that is a danger.",
        f"Write the first page of the report within {s.number('report', 4, 24, 4)} hours, while it is still plain.",
        "Tell the next shift in person. A lesson that is only filed will be learnt again.",
    )
    table = [["Year", "Event", "Unit", "Hours lost", "Told by"]]
    for i in range(5):
        key = f"event{i}"
        what = s.pick(
            key, "lightning", "bearing warm", "rack blocked", "governor hunting", "seal water lost", "relay test"
        )
        table.append([
            f"{s.name} {1978 + 9 * i + s.number(f'{key}.year', 0, 8)}", what, str(s.number(f"{key}.unit", 1, 3)),
            str(s.number(f"{key}.hours", 1, 96)),
            s.pick(f"{key}.by", "day shift", "night shift", "the farmer", "the alarm"),
        ])  # fmt: skip
    monthly = _monthly(s, ("Alarms", 10, 640), ("False alarms", 0, 220), ("Hours lost", 0, 480))
    return Section("Events and lessons", paragraphs, steps, "From the log", table, monthly)


def _cause(s: Station) -> str:
    return s.pick(
        "cause",
        "a mouse had built its nest in the cabinet of the speed relay",
        "a new lamp in the hall disturbed the flame detector",
        "the clock of the protection relay had been set to the wrong century",
        "a spade had cut the cable beside the surge tank",
        "condensed water dripped on one terminal, and only when the wind was in the west",
        "the paint of a fresh label had crept under a contact",
    )


def _delay(s: Station) -> str:
    return s.pick(
        "delay",
        "the new runner did not fit through the old door",
        "the bridge on the road had to be propped for the transformer",
        "the crane driver had broken a leg while skiing",
        "a wasps' nest was found in the spiral case and moved by a beekeeper",
        "the bolts had been ordered in inches",
    )


MAKERS: tuple[Callable[[Station], Section], ...] = (
    *(_station, _intake, _pipe, _gates, _valve, _turbine, _surge, _events),
)
