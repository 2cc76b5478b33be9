// Renders Go templates as Ollama does: reads JSON lines {"template", "system", "messages"} and prints each text as a JSON line.
package main

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"text/template"
)

type message struct{ Role, Content string }

type request struct {
	Template, System string
	Messages         []message
}

func main() {
	input, output := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var asked request
		if err := input.Decode(&asked); err == io.EOF {
			return
		} else if err != nil {
			panic(err)
		}
		var text strings.Builder
		parsed := template.Must(template.New("").Option("missingkey=zero").Parse(asked.Template))
		values := map[string]any{"System": asked.System, "Messages": asked.Messages, "Response": ""}
		if err := parsed.Execute(&text, values); err != nil {
			panic(err)
		}
		if err := output.Encode(text.String()); err != nil {
			panic(err)
		}
	}
}
