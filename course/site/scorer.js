// The search: chapters above everything else, the reference below it. Sphinx puts this before its own
// lines, and asks for all of these; the numbers are its own, `score` is ours.
var Scorer = {
  score([page, , , , found]) {
    if (page.startsWith("reference/")) return found / 10;
    return /^course\/\d/.test(page) ? 5 * found : found;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
