// "Predict before you run": a field below each question, what the chapter answers, and how far off you
// were. State: `page`, `fields` (course/predictions.toml). Answers are kept on this machine only.

const kept = () => JSON.parse(localStorage.getItem("predictions") ?? "{}");
const number = (text) => Number(String(text).replace(/,(?=\d{3})/g, "").replace(",", ".").replace(/[^\d.e-]/g, ""));

// How a number compares with the answer, in words.
export function verdict(guess, is) {
  if (!(guess > 0)) return "that is no number above zero";
  const times = guess > is ? guess / is : is / guess;
  if (times < 1.1) return "right, within a tenth";
  const how = times < 2 ? `${Math.round(100 * Math.abs(guess / is - 1))}%` : `${times < 10 ? times.toFixed(1) : Math.round(times).toLocaleString("en")} times`;
  return `${how} too ${guess > is ? "much" : "little"}`;
}

function render({ model, el }) {
  const page = model.get("page"), fields = model.get("fields");
  const questions = el.previousElementSibling?.querySelectorAll("li") ?? [];
  el.classList.add("predict");
  el.innerHTML = `<p class="says" role="status" aria-live="polite"></p>`;
  const says = el.querySelector(".says");

  function keep(index, found) {
    const all = kept();
    (all[page] ??= {})[index] = found;
    localStorage.setItem("predictions", JSON.stringify(all));
  }
  function tell(told = "") {
    const mine = Object.values(kept()[page] ?? {});
    const good = mine.filter(({ good }) => good).length;
    says.innerHTML = `${told} ${mine.length} of ${fields.length} answers revealed, ${good} right.` +
      ` <a href="${model.get("all")}">All your predictions</a>`;
  }
  function reveal(row, index, guess, good, told) {
    const { says: answer, is, unit } = fields[index];
    row.classList.add(good ? "good" : "wrong");
    row.querySelectorAll("input, select, button").forEach((part) => { part.disabled = true; });
    row.querySelector(".answer").innerHTML = `<b></b> <q></q>`;
    row.querySelector("b").textContent = told;
    row.querySelector("q").textContent = answer;
    return { guess, good, is, unit };
  }
  function judge(index, guess) {
    const { is, of } = fields[index];
    if (of) return [guess === is, guess === is ? "Right." : `It is: ${is}.`];
    const words = verdict(number(guess), is);
    return [words.startsWith("right"), `${is.toLocaleString("en")}: ${words}.`];
  }

  fields.forEach((field, index) => {
    const row = document.createElement("form"), name = `${field.q}${field.ask ? `, ${field.ask}` : ""}`;
    row.className = "guess";
    row.innerHTML = (field.of
      ? `<select aria-label="your answer to ${name}"><option value="">choose</option>${field.of.map((of) => `<option>${of}</option>`).join("")}</select>`
      : `<input aria-label="your answer to ${name}" ${field.is ? 'inputmode="decimal" size="7"' : 'size="30"'} autocomplete="off">`) +
      `<span>${field.unit ?? ""}${field.ask ? ` <small>(${field.ask})</small>` : ""}</span>
       <button>reveal</button> <span class="answer"></span>`;
    const input = row.querySelector("input, select");
    row.addEventListener("submit", (event) => {
      event.preventDefault();
      const guess = input.value.trim();
      if (!guess || (field.is > 0 && !(number(guess) > 0))) return input.focus();
      if (field.is === undefined) {
        reveal(row, index, guess, false, "The chapter:");
        row.classList.remove("wrong");
        for (const [word, good] of [["I had it", true], ["I had not", false]]) {
          const button = document.createElement("button");
          button.type = "button";
          button.textContent = word;
          button.addEventListener("click", () => {
            keep(index, reveal(row, index, guess, good, good ? "You had it:" : "Not yet:"));
            tell();
          });
          row.querySelector(".answer").append(button);
        }
        return row.querySelector(".answer button").focus();
      }
      const [good, told] = judge(index, guess);
      keep(index, reveal(row, index, number(guess) > 0 && !field.of ? number(guess) : guess, good, told));
      tell(told);
    });
    (questions[field.q - 1] ?? el).append(row);
    const before = kept()[page]?.[index];
    if (before) {
      input.value = before.guess;
      const told = field.is === undefined ? (before.good ? "You had it:" : "Not yet:") : judge(index, String(before.guess))[1];
      reveal(row, index, before.guess, before.good, told);
    }
  });
  tell();
}

export default { render };
