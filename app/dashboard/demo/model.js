// A simulated model: the same words for the same script, so that a reloaded window can go on where it was cut off.

const SCRIPTS = [
  `Lisbon in a week, without long walks 🚋

Day 1. Arrive, and take tram 28 from Martim Moniz: it climbs through Graça and Alfama while you sit. Dinner in Campo de
Ourique, where the market has seats and everything on a counter. 🌊

Day 2. Belém by the river train. The monastery, then a pastel de nata; the terrace of the museum has a lift and the best
view of the bridge. Café com leite, naïve façade, crème brûlée: accents count as one.

Day 3. A boat to Cacilhas and back, ten minutes each way, for fish at the quay (no peanuts in the kitchen, they say).
東京 is further, and a family such as 👨‍👩‍👧 is five code points.

Days 4 to 6 are for Sintra, Cascais and doing nothing at all. On day 7 you fly home.`,
  `Another week, then, with rain in mind ☔

Stay near Baixa, so that everything is one metro ride away. The tile museum takes a morning, the aquarium an afternoon,
and both have benches in every room. Between them: soup, bread, and the covered market at Ribeira.

Keep the miradouros for the evening, when the clouds break. Senhora do Monte is the highest; a tuk-tuk goes to the top.
Tom need not walk more than two hundred metres on any of these days. Bom dia, and boa viagem! 🧳`,
];

export const scriptCount = SCRIPTS.length;

// The script's words with the spaces after them. Lines that are broken for this file alone are one line.
export function words(script) {
  return SCRIPTS[script % SCRIPTS.length].replace(/([^\n])\n(?=[^\n])/gu, "$1 ").match(/\S+\s*/gu);
}
