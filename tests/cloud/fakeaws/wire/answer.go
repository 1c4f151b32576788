package wire

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Time is a time in AWS's encoding: ISO 8601 with milliseconds in XML, seconds since 1970 in JSON.
type Time struct{ time.Time }

// MarshalText encodes the time for XML.
func (t Time) MarshalText() ([]byte, error) {
	return []byte(t.UTC().Format("2006-01-02T15:04:05.000Z")), nil
}

// MarshalJSON encodes the time for the JSON protocols.
func (t Time) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(t.UnixMilli())/1000, 'f', 3, 64), nil
}

// Encode encodes a handler's answer. The cloud holds its lock during the call, because the answer may point to data of
// the cloud.
func Encode(c *Call, answer any) ([]byte, error) {
	body, err := protocols[c.Service].encode(c, answer)
	if err != nil {
		return nil, fmt.Errorf("encode the answer of %s %s: %w", c.Service, c.Action, err)
	}
	return body, nil
}

// Write sends an encoded answer with HTTP status 200.
func Write(w http.ResponseWriter, c *Call, body []byte) {
	write(w, protocols[c.Service], c.RequestID, http.StatusOK, body)
}

func (p protocol) encode(c *Call, answer any) ([]byte, error) {
	if p.kind == kindJSON {
		if answer == nil {
			return []byte("{}"), nil
		}
		return json.Marshal(answer)
	}
	inner, err := elements(answer)
	if err != nil {
		return nil, err
	}
	if p.kind == kindEC2 {
		return fmt.Appendf(nil, "<%[1]sResponse xmlns=%[2]q><requestId>%[3]s</requestId>%[4]s</%[1]sResponse>",
			c.Action, p.namespace, c.RequestID, inner), nil
	}
	return fmt.Appendf(nil,
		"<%[1]sResponse xmlns=%[2]q><%[1]sResult>%[4]s</%[1]sResult>"+
			"<ResponseMetadata><RequestId>%[3]s</RequestId></ResponseMetadata></%[1]sResponse>",
		c.Action, p.namespace, c.RequestID, inner), nil
}

// elements returns the XML content of a value, without the enclosing element.
func elements(answer any) ([]byte, error) {
	if answer == nil {
		return nil, nil
	}
	var out bytes.Buffer
	encoder := xml.NewEncoder(&out)
	// EncodeElement needs a name for the element, because an anonymous struct has none.
	if err := encoder.EncodeElement(answer, xml.StartElement{Name: xml.Name{Local: "answer"}}); err != nil {
		return nil, err
	}
	inner, begun := bytes.CutPrefix(out.Bytes(), []byte("<answer>"))
	inner, ended := bytes.CutSuffix(inner, []byte("</answer>"))
	if !begun || !ended {
		return nil, errors.New("the answer is not a plain structure")
	}
	return inner, nil
}

// WriteError writes an error in the shape of the service's protocol. An error that is not an *Error becomes
// InternalFailure with HTTP status 500.
func WriteError(w http.ResponseWriter, service, requestID string, err error) {
	e := AsError(err)
	p := protocols[service]
	write(w, p, requestID, e.Status, p.encodeError(e, requestID))
}

// AsError converts an error to AWS's form. It sets the fields Status and Fault if they are empty.
func AsError(err error) *Error {
	e := &Error{Code: "InternalFailure", Message: "fakeaws: " + err.Error(), Status: http.StatusInternalServerError}
	var known *Error
	if errors.As(err, &known) {
		e = new(Error)
		*e = *known
	}
	if e.Status == 0 {
		e.Status = http.StatusBadRequest
	}
	if e.Fault == "" {
		e.Fault = "Sender"
		if e.Status >= http.StatusInternalServerError {
			e.Fault = "Receiver"
		}
	}
	return e
}

type xmlError struct {
	Type    string `xml:",omitempty"`
	Code    string
	Message string
}

func (p protocol) encodeError(e *Error, requestID string) []byte {
	var value any
	switch p.kind {
	case kindJSON:
		out, err := json.Marshal(map[string]string{"__type": e.Code, "message": e.Message})
		if err != nil {
			panic(err) // encoding two strings never fails
		}
		return out
	case kindEC2:
		value = struct {
			XMLName   xml.Name   `xml:"Response"`
			Errors    []xmlError `xml:"Errors>Error"`
			RequestID string
		}{Errors: []xmlError{{Code: e.Code, Message: e.Message}}, RequestID: requestID}
	case kindS3:
		value = struct {
			XMLName           xml.Name `xml:"Error"`
			Code, Message     string
			RequestId, HostId string
		}{Code: e.Code, Message: e.Message, RequestId: requestID}
	default:
		value = struct {
			XMLName   xml.Name `xml:"ErrorResponse"`
			Xmlns     string   `xml:"xmlns,attr"`
			Error     xmlError
			RequestId string
		}{Xmlns: p.namespace, Error: xmlError{Type: e.Fault, Code: e.Code, Message: e.Message}, RequestId: requestID}
	}
	out, err := xml.Marshal(value)
	if err != nil {
		panic(err)
	}
	return out
}

func write(w http.ResponseWriter, p protocol, requestID string, status int, body []byte) {
	h := w.Header()
	if p.kind == kindJSON {
		h.Set("Content-Type", "application/x-amz-json-1.1")
		if status >= http.StatusBadRequest {
			var e struct {
				Type string `json:"__type"`
			}
			if json.Unmarshal(body, &e) == nil {
				h.Set("X-Amzn-Errortype", e.Type)
			}
		}
	} else {
		h.Set("Content-Type", "text/xml;charset=UTF-8")
		body = append([]byte(xml.Header), body...)
	}
	h.Set("X-Amzn-Requestid", requestID)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone and then needs no answer
}
